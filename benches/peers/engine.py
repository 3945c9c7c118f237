"""A peer as a process of its own: loads, says it is ready, then does what each line of stdin asks. See README.md.

usage: engine.py {st|st-f16|ort|ort-int8} MODEL_FOLDER IDS_JSON THREADS [cpu|cuda]
"""

import json
import os
import sys
import time

KIND, FOLDER, IDS, THREADS = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
DEVICE = sys.argv[5] if len(sys.argv) > 5 else "cpu"
# Before the libraries are loaded: some read them only then.
os.environ.update(OMP_NUM_THREADS=str(THREADS), MKL_NUM_THREADS=str(THREADS), TOKENIZERS_PARALLELISM="false",
                  HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
BATCHES = [4, 8, 16, 32] if DEVICE == "cpu" else [32, 64, 128]

import numpy as np

# What is said goes to the parent alone; libraries that print go to stderr.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


class SentenceTransformers:
    """As a user calls it, but for the tokenizer: a text is its number, padded to as many characters as it has tokens,
    so that the library's own sorting by length does what it does with texts."""

    def __init__(self, texts):
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(THREADS)
        options = {"dtype": torch.float16 if KIND == "st-f16" else torch.float32}
        self.torch, self.texts = torch, texts
        self.model = SentenceTransformer(FOLDER, device=DEVICE, model_kwargs=options)
        self.model.preprocess = self.features

    def features(self, names, **_):
        texts = [self.texts[int(name[:6])] for name in names]
        return {"modality": "text", **{key: self.torch.from_numpy(value) for key, value in padded(texts).items()}}

    def encode(self, chosen, batch):
        names = [f"{at:06}".ljust(len(self.texts[at]), ".") for at in chosen]
        return self.model.encode(names, batch_size=batch, show_progress_bar=False)


class OnnxRuntime:
    """The same batches: sorted by length, longest first, padded to the longest of each."""

    def __init__(self, texts, file):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
        # It spins while it works, as by default, and not while another engine does.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self.texts = texts
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def encode(self, chosen, batch):
        order = sorted(chosen, key=lambda at: -len(self.texts[at]))
        vectors = {}
        for start in range(0, len(order), batch):
            part = order[start:start + batch]
            first = self.session.run(["first"], padded([self.texts[at] for at in part]))[0]
            vectors.update(zip(part, first / np.linalg.norm(first, axis=1, keepdims=True)))
        return np.stack([vectors[at] for at in chosen])


def padded(texts):
    longest = max(map(len, texts))
    ids = np.ones((len(texts), longest), np.int64)
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, :len(text)], mask[row, :len(text)] = text, 1
    return {"input_ids": ids, "attention_mask": mask}


def main():
    given = json.load(open(IDS))
    texts = [*given["texts"], given["short"], given["long"]]
    every, short, long = list(range(len(texts) - 2)), len(texts) - 2, len(texts) - 1
    if KIND.startswith("st"):
        engine = SentenceTransformers(texts)
    else:
        import graph

        engine = OnnxRuntime(texts, graph.prepared(FOLDER, int8=KIND == "ort-int8"))
    best = BATCHES[-1]

    def timed(chosen, batch):
        start = time.perf_counter()
        vectors = engine.encode(chosen, batch)
        return time.perf_counter() - start, vectors

    print(json.dumps({"ready": KIND}), file=answers)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "warm":
            # Each peer takes the batch size that suits it: less padding or fewer calls, whichever costs less.
            best = min(BATCHES, key=lambda batch: timed(every, batch)[0])
            answer = {"batch": best}
        elif word == "all":
            answer = {"s": timed(every, best)[0]}
        elif word == "one":
            answer = {"s": [timed([short], 1)[0] for _ in range(int(rest[0]))]}
        elif word == "long":
            answer = {"s": timed([long], 1)[0]}
        elif word == "vectors":
            timed(every, best)[1].astype("<f4").tofile(rest[0])
            answer = {"dim": engine.encode([short], 1).shape[1]}
        else:
            answer = {"error": f"unknown: {word}"}
        print(json.dumps(answer), file=answers)


main()
