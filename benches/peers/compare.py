"""Runs the engines in turn on the same token ids and prints a table. Started by `run`; see README.md."""

import argparse
import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import numpy as np

import shape

HERE = os.path.dirname(os.path.abspath(__file__))
# How ours is set for a name. Any other is written as `forebay:key=value,key=value`.
OURS = {
    "forebay": "kernel=auto,compute=f32",
    "forebay-i16": "kernel=auto,compute=i16",
    "forebay-candle": "kernel=candle,compute=f32",
    "forebay-avx2": "kernel=avx2,compute=f32",
    "forebay-avx2-i16": "kernel=avx2,compute=i16",
}
PEERS = ["st", "st-f16", "ort", "ort-int8"]
# Between turns: what spins has gone to sleep when the next engine starts.
PAUSE_S = 0.5
MIB = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(prog="benches/peers/run", description=__doc__)
    parser.add_argument("--layers", type=int, default=6, help="of bge-m3's 24 (default 6)")
    parser.add_argument("--tokens", type=int, help="in all texts (default 12,000; 6,000 with more than 12 layers)")
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one that does not (default 5)")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default 2)")
    parser.add_argument("--engines", default="st,ort,ort-int8,forebay,forebay-i16,forebay-candle",
                        help=f"of {', '.join(PEERS + list(OURS))}, forebay:key=value+key=value (default %(default)s)")
    parser.add_argument("--latency", type=int, metavar="N", help="instead: one text of 16 tokens alone, N times")
    parser.add_argument("--long", action="store_true", help="instead: one text of 8,192 tokens, and its memory")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (st and forebay)")
    parser.add_argument("--json", metavar="FILE", help="append what was measured to FILE, one object a line")
    parser.add_argument("--home", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--peer", required=True, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.tokens = args.tokens or (12_000 if args.layers <= 12 else 6_000)
    return args


class Engine:
    """A process that has loaded the model and waits."""

    def __init__(self, name, args, model, ids):
        self.name, self.idle_s, self.rounds = name, 0.0, []
        self.errors = open(os.path.join(args.home, f"{name.replace('/', '_')}.log"), "w+")
        command = self.command(name, args, model, ids)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True, bufsize=1)
        self.ready = self.read()
        self.loaded_peak, self.loaded_now = self.memory()

    @staticmethod
    def command(name, args, model, ids):
        if name in PEERS:
            return [sys.executable, os.path.join(HERE, "engine.py"), name, model, ids, str(args.threads), args.device]
        pairs = OURS.get(name) or name.partition(":")[2].replace("+", ",")
        pairs = [*pairs.split(","), f"threads={args.threads}", f"device={args.device}"]
        return [args.peer, "serve", model, "--ids", ids, *pairs]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            said = self.errors.read().strip().splitlines() or ["nothing"]
            raise RuntimeError(f"{self.name} ended ({self.process.returncode}): {said[-1]}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        return self.read()

    def cpu_s(self):
        fields = open(f"/proc/{self.process.pid}/stat").read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self):
        """Peak and present resident bytes."""
        lines = dict(line.split(":") for line in open(f"/proc/{self.process.pid}/status"))
        return tuple(int(lines[key].split()[0]) * 1024 for key in ("VmHWM", "VmRSS"))

    def forget_peak(self):
        open(f"/proc/{self.process.pid}/clear_refs", "w").write("5")

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.errors.close()


@contextlib.contextmanager
def engines(args, model, ids, names):
    """All that load; who does not is named and left out."""
    running = []
    try:
        for name in names:
            try:
                running.append(Engine(name, args, model, ids))
                say(f"{name}: loaded")
            except RuntimeError as error:
                say(f"left out: {error}")
        yield running
    finally:
        for engine in running:
            engine.close()


def say(text):
    print(text, file=sys.stderr, flush=True)


def stolen():
    """Time the machine's owner took, and all time, in ticks."""
    ticks = [int(word) for word in open("/proc/stat").readline().split()[1:9]]
    return ticks[7], sum(ticks)


def others(running, engine):
    return sum(other.cpu_s() for other in running if other is not engine)


def throughput(args, running, given):
    tokens = sum(map(len, given["texts"]))
    for engine in running:
        say(f"{engine.name}: warm: {engine.ask('warm')}")
    peaks = []
    for turn in range(args.rounds + 1):
        # Each round starts with another engine, so that none always follows the same one.
        order = running[turn % len(running):] + running[:turn % len(running)]
        for engine in order:
            time.sleep(PAUSE_S)
            idle, cpu = others(running, engine), engine.cpu_s()
            seconds = engine.ask("all")["s"]
            cpu, idle = engine.cpu_s() - cpu, others(running, engine) - idle
            if turn:
                engine.rounds.append({"s": seconds, "cpu_s": cpu, "others_s": idle})
        time.sleep(PAUSE_S)
        if turn and args.device == "cpu":
            peaks.append(peak(args))
        say(f"round {turn} of {args.rounds}: " + ", ".join(
            f"{engine.name} {tokens / engine.rounds[-1]['s']:.0f}" for engine in running if engine.rounds))
    if not running:
        return []
    vectors = {engine.name: vectors_of(args, engine) for engine in running}
    base = next((engine.name for engine in running if engine.name == "st"), running[0].name)
    rows = [throughput_row(args, engine, running, tokens, given, peaks, vectors, base) for engine in running]
    table(["engine", "tokens/s, median [min..max]", f"× {base}", "× ort", "CPU", "share of peak", "peak RSS", f"× {base}",
           f"cosine to {base}, min / median"], [row["cells"] for row in rows])
    idle = max(part["others_s"] / part["s"] for engine in running for part in engine.rounds)
    print(f"\nwhile one engine ran, the others together used {100 * idle:.1f} % of one core at most")
    for name in sorted({name for part in peaks for name in part}):
        print(f"peak of {args.threads} threads, registers only: {name} "
              f"{statistics.median(part[name] for part in peaks):.0f} Gop/s")
    for row in rows:
        if row["shares_of_peak"]:
            print(f"{row['engine']}: " + ", ".join(
                f"{100 * share:.0f} % of {name}" for name, share in row["shares_of_peak"].items()))
    return [{key: value for key, value in row.items() if key != "cells"} for row in rows]


def throughput_row(args, engine, running, tokens, given, peaks, vectors, base):
    rates = [tokens / part["s"] for part in engine.rounds]
    gemms, attention = operations(args.layers, given["texts"])
    # i16 computes its matrix products in integers and its attention in f32: only the former are counted for it.
    kind = "i16" if "i16" in engine.name else "f32"
    done = gemms if kind == "i16" else gemms + attention
    ways = sorted({name for part in peaks for name in part if name.startswith(kind)})
    if "int8" in engine.name:
        ways = []
    shares = {name: statistics.median(done / 1e9 / part["s"] / peak[name] for part, peak in zip(engine.rounds, peaks))
              for name in ways}
    # The quickest way has the smallest share.
    way = min(shares, key=shares.get, default=None)
    top = engine.memory()[0]
    row = {
        "engine": engine.name, "tokens_per_s": rates, "peak_rss": top, "shares_of_peak": shares,
        "against": base, "ratios": ratio(engine, running, base), "ratios_ort": ratio(engine, running, "ort"),
        "cpu": statistics.median(part["cpu_s"] / part["s"] for part in engine.rounds),
    }
    base_top = next(other.memory()[0] for other in running if other.name == base)
    cosines = (vectors[engine.name] * vectors[base]).sum(axis=1)
    row["cosine_min"], row["cosine_median"] = float(cosines.min()), float(np.median(cosines))
    row["cells"] = [
        engine.name, f"{statistics.median(rates):.0f} [{min(rates):.0f}..{max(rates):.0f}]",
        shown(row["ratios"]), shown(row["ratios_ort"]), f"{row['cpu']:.2f}",
        f"{100 * shares[way]:.0f} % of {way}" if way else "", f"{top / MIB:.0f} MiB", f"{top / base_top:.2f}",
        f"{cosines.min():.7f} / {np.median(cosines):.7f}"]
    return row


def ratio(engine, running, name):
    """Of each round its own: engine and peer ran seconds apart, and what disturbs the machine disturbs both."""
    peer = next((other for other in running if other.name == name), None)
    return peer and [theirs["s"] / ours["s"] for ours, theirs in zip(engine.rounds, peer.rounds)]


def shown(ratios):
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}..{max(ratios):.2f}]" if ratios else ""


def operations(layers, texts):
    """Multiplications and additions, each counted: of the matrix products, and of attention."""
    width, inner = shape.WIDTH, shape.INNER
    gemms = sum(map(len, texts)) * layers * 2 * (4 * width * width + 2 * width * inner)
    return gemms, sum(len(text) ** 2 for text in texts) * layers * 4 * width


def peak(args):
    lines = subprocess.run([args.peer, "peak", str(args.threads)], capture_output=True, text=True, check=True).stdout
    return {item["way"]: item["gops"] for item in map(json.loads, lines.splitlines())}


def vectors_of(args, engine):
    path = os.path.join(args.home, "vectors.f32")
    dim = engine.ask(f"vectors {path}")["dim"]
    vectors = np.fromfile(path, "<f4").reshape(-1, dim).astype(np.float64)
    os.remove(path)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def latency(args, running):
    """`--latency` texts in `--rounds` rounds, interleaved; the median of all of an engine."""
    each = max(1, args.latency // args.rounds)
    times = {engine.name: [] for engine in running}
    for engine in running:
        engine.ask("one 5")
    for _ in range(args.rounds):
        for engine in running:
            time.sleep(PAUSE_S)
            times[engine.name] += engine.ask(f"one {each}")["s"]
    base = statistics.median(times.get("st") or [float("nan")])
    rows = [{"engine": name, "ms": [1e3 * value for value in values]} for name, values in times.items()]
    table(["engine", "ms, median [min..max]", "× st (less is quicker)"], [
        [name, f"{1e3 * statistics.median(values):.1f} [{1e3 * min(values):.1f}..{1e3 * max(values):.1f}]",
         f"{statistics.median(values) / base:.2f}"] for name, values in times.items()])
    return rows


def long_text(args, model, ids, names):
    """Each engine alone, just loaded: what one text of 8,192 tokens takes on top."""
    rows = []
    for name in names:
        with engines(args, model, ids, [name]) as running:
            for engine in running:
                engine.forget_peak()
                before = engine.memory()[1]
                first = engine.ask("long")["s"]
                above = engine.memory()[0] - before
                again = engine.ask("long")["s"]
                rows.append({"engine": name, "s": min(first, again), "above_load": above, "loaded": before,
                             "loading_peak": engine.loaded_peak})
    table(["engine", "s (better of two)", "peak RSS above load", "RSS when loaded", "peak while loading"], [
        [row["engine"], f"{row['s']:.2f}", *(f"{row[key] / MIB:.0f} MiB" for key in ("above_load", "loaded", "loading_peak"))]
        for row in rows])
    return rows


def table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def machine(args):
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    flags = next((line.split() for line in open("/proc/cpuinfo") if line.startswith("flags")), [])
    has = [flag for flag in ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8") if flag in flags]
    versions = {name: version(name) for name in ("torch", "sentence-transformers", "transformers", "onnxruntime")}
    return {"date": datetime.date.today().isoformat(), "processor": model, "instructions": has,
            "processors": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0],
            "versions": versions, "layers": args.layers, "tokens": args.tokens, "threads": args.threads,
            "device": args.device}


def version(name):
    import importlib.metadata

    return importlib.metadata.version(name)


def main():
    args = arguments()
    model = os.path.join(args.home, f"bge-m3-of-{args.layers}")
    ids = os.path.join(args.home, f"ids-{args.tokens}.json")
    # In a process of its own: the memory of making weights is not kept.
    subprocess.run([sys.executable, "-c", "import shape, sys; shape.write_model(sys.argv[1], int(sys.argv[2]))", model,
                    str(args.layers)], check=True, cwd=HERE)
    given = shape.write_ids(ids, args.tokens)
    names = args.engines.split(",")
    about = machine(args)
    print(f"{about['date']}: {about['processors']} processors of {about['processor']} ({' '.join(about['instructions'])}), "
          f"load {about['load']:.1f}\n{args.layers} layers, {len(given['texts'])} texts of "
          f"{sum(map(len, given['texts']))} tokens, {args.threads} threads each, {args.rounds} rounds, "
          + ", ".join(f"{name} {number}" for name, number in about["versions"].items()), flush=True)
    if about["load"] > 0.5:
        say("the machine is not quiet: ratios will be rough")
    before = stolen()
    if args.long:
        kind, rows = "long", long_text(args, model, ids, names)
    else:
        with engines(args, model, ids, names) as running:
            if args.latency:
                kind, rows = "latency", latency(args, running)
            else:
                kind, rows = "throughput", throughput(args, running, given)
    after = stolen()
    about["stolen"] = (after[0] - before[0]) / max(1, after[1] - before[1])
    print(f"\nstolen from the machine meanwhile: {100 * about['stolen']:.1f} %")
    if args.json:
        with open(args.json, "a") as file:
            print(json.dumps({"kind": kind, **about, "rows": rows}), file=file)


main()
