#!/usr/bin/env python3
"""Makes corpus.jsonl from the Debian package dict-jargon. Standard library only; see README.md."""

import gzip
import json
import re
import sys
from pathlib import Path

SOURCE = "The Jargon File, version 4.4.7, 29 Dec 2003"
WORDS = range(40, 121)
RECORDS = 320
ALWAYS = {"heisenbug", "creeping featurism", "rubber-hose cryptanalysis"}
# Entries a visitor of a demo need not read.
LEFT_OUT = re.compile(
    r"\b(sex\w*|fuck\w*|shit\w*|crap\w*|ass|asshole\w*|arse|suck\w*|piss\w*|bitch\w*|whore\w*|nazi\w*|rape\w*|dick"
    r"|penis\w*|turd\w*|fart\w*|drugs?|marijuana|lesbian\w*|gay|racial\w*|racist\w*|naked|breasts?|orgasm\w*|masturbat\w*"
    r"|suicide|holocaust|castrat\w*|slut\w*|retard\w*|gonad\w*|anal|screwe?d?|virgin\w*|excre\w*|porn\w*|fetish\w*)\b",
    re.IGNORECASE,
)
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def number(text):
    """dictd's base 64, most significant digit first."""
    value = 0
    for digit in text:
        value = value * 64 + DIGITS.index(digit)
    return value


def entries(folder):
    data = gzip.decompress((folder / "jargon.dict.dz").read_bytes())
    for line in (folder / "jargon.index").read_text(encoding="utf-8").splitlines():
        _, start, length = line.split("\t")[:3]
        yield data[number(start) : number(start) + number(length)].decode("utf-8")


def record(entry):
    """An entry as (title, text): the definition as one paragraph, cross-reference braces removed."""
    title, _, rest = entry.strip("\n").partition("\n")
    body = "\n".join(line for line in rest.splitlines() if line.startswith("    "))
    body = re.sub(r"\{\s*|\s*\}", "", re.sub(r"\s+", " ", body)).strip()
    body = re.sub(r"^(\[[^\]]*\]\s*)+", "", body)
    return title.strip(), f"{title.strip()}: {body}"


def main(folder):
    found = {}
    for entry in entries(Path(folder)):
        title, text = record(entry)
        plain = not title.startswith("00-database") and not LEFT_OUT.search(text)
        if plain and len(text.split()) in WORDS:
            found[title] = text
    titles = sorted(found, key=str.lower)
    step = len(titles) / (RECORDS - len(ALWAYS))
    chosen = {titles[int(i * step)] for i in range(RECORDS - len(ALWAYS))} | (ALWAYS & found.keys())
    used = set()
    for title in sorted(chosen, key=str.lower):
        name = "jargon/" + (re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "sign")
        if name in used:
            continue
        used.add(name)
        meta = {"title": title, "source": SOURCE}
        print(json.dumps({"id": name, "text": found[title], "meta": meta}, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make.py FOLDER_WITH_jargon.dict.dz > corpus.jsonl")
    main(sys.argv[1])
