"""Writes the golden files: token ids and vectors of the Python reference. Run once, by hand, not by tests:

    pip install -r tests/golden/requirements.txt
    FOREBAY_TINY_OUT=TINY cargo test --release --features testkit --test likeness -- --ignored dump
    python tests/golden/make.py MODELS TINY          # MODELS holds all-minilm-l6-v2/
    python tests/golden/make.py outputs TINY         # only the three outputs of the tiny XLM-R with heads

Special tokens spelled out in a text are text, as everywhere in Forebay. For BERT `split_special_tokens` does it. For
XLM-R it is not enough: `<pad>` is a piece of the Unigram too, and the best one for these letters, where sentencepiece
itself never matches a control piece in a text. `hide_controls` gives sentencepiece's answer.
"""

import base64
import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer, BertModel, PreTrainedTokenizerFast, XLMRobertaModel

import texts

HERE = Path(__file__).parent


def hide_controls(tokenizer_json):
    """The tokenizer with control pieces renamed, so that no text matches one; ids stay."""
    tokenizer = json.loads(tokenizer_json.read_text())
    controls = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    for piece in tokenizer["model"]["vocab"]:
        if piece[0] in controls:
            piece[0] = "\ue000" + piece[0]
    tokenizer["added_tokens"] = []
    tokenizer["truncation"] = tokenizer["padding"] = None
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer))

    def encode(text, truncation, max_length, padding):
        tokenizer.enable_truncation(max_length)
        return {"input_ids": tokenizer.encode(text).ids}

    return encode


def pool(hidden, mask, pooling):
    if pooling == "cls":
        vectors = hidden[:, 0]
    else:
        mask = mask.unsqueeze(-1).to(hidden.dtype)
        vectors = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(vectors, dim=1)


def golden(name, folder, tokenizer, pad, controls, model, pooling, max_length, lines, prefix=""):
    model = model.eval().float()
    records, vectors = [], []
    for text in lines:
        ids = tokenizer(prefix + text, truncation=True, max_length=max_length, padding=False)["input_ids"]
        input_ids = torch.tensor([ids])
        mask = torch.ones_like(input_ids)
        with torch.no_grad():
            vector = pool(model(input_ids=input_ids, attention_mask=mask).last_hidden_state, mask, pooling)[0]
        vectors.append(vector)
        records.append({"text": text, "ids": ids, "vector": base64.b64encode(vector.numpy().tobytes()).decode()})
    # The reference must agree with itself: the same texts in one padded, very uneven batch.
    longest = max(len(r["ids"]) for r in records)
    input_ids = torch.tensor([r["ids"] + [pad] * (longest - len(r["ids"])) for r in records])
    mask = torch.tensor([[1] * len(r["ids"]) + [0] * (longest - len(r["ids"])) for r in records])
    with torch.no_grad():
        batch = pool(model(input_ids=input_ids, attention_mask=mask).last_hidden_state, mask, pooling)
    worst = min(float(a @ b) for a, b in zip(batch, vectors))
    assert worst > 0.999999, worst
    for record in records:
        inside = set(record["ids"][1:-1]) & controls
        assert not inside, (record["text"][:60], inside)
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    head = {"model": name, "weights_sha256": weights, "max_length": max_length, "texts": len(records)}
    with open(HERE / f"{name}.jsonl", "w", encoding="utf-8") as out:
        for line in [head, *records]:
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(name, len(records), "texts, longest", longest, "tokens; reference alone against padded batch:", worst)
    return records, vectors


def sensitivity(model, records, vectors):
    """Wrong positions must show in the golden vectors, or they would prove nothing."""
    for name, wrong in {
        "from 0": lambda p: p - 2,
        "rounded to bf16": lambda p: p.to(torch.bfloat16).long(),
        "rounded to f16": lambda p: p.to(torch.float16).long(),
    }.items():
        cosines = []
        for record, vector in zip(records, vectors):
            ids = torch.tensor([record["ids"]])
            positions = wrong(torch.arange(2, 2 + ids.shape[1]))[None]
            with torch.no_grad():
                hidden = model(input_ids=ids, position_ids=positions).last_hidden_state
            cosines.append(float(pool(hidden, torch.ones_like(ids), "cls")[0] @ vector))
        print("  positions", name, "-> worst cosine", min(cosines))
        assert min(cosines) < 0.9999


def main(models, tiny):
    folder = models / "all-minilm-l6-v2"
    tokenizer = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    model = AutoModel.from_pretrained(folder)
    golden("minilm", folder, tokenizer, 0, {0, 101, 102, 103}, model, "mean", 256, texts.MINILM)

    folder = tiny / "bert"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), split_special_tokens=True,
                                        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    model = BertModel.from_pretrained(folder, add_pooling_layer=False)
    golden("tiny-bert", folder, tokenizer, 0, {0, 2, 3, 4}, model, "mean", 300, texts.TINY)

    folder = tiny / "xlm-roberta"
    tokenizer = hide_controls(folder / "tokenizer.json")
    model = XLMRobertaModel.from_pretrained(folder, add_pooling_layer=False)
    mask = model.config.vocab_size - 1
    args = ("tiny-xlm-roberta", folder, tokenizer, 1, {0, 1, 2, mask}, model, "cls", 4200, texts.TINY)
    sensitivity(model.eval(), *golden(*args))
    likenesses(tiny)
    outputs(tiny)


def likenesses(tiny):
    """What the other entries of models/ are like: BERT with CLS, BERT under XLM-R's tokenizer, XLM-R with mean."""
    folder = tiny / "tiny-bge"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), split_special_tokens=True,
                                        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    model = BertModel.from_pretrained(folder, add_pooling_layer=False)
    golden("tiny-bge", folder, tokenizer, 0, {0, 2, 3, 4}, model, "cls", 300, texts.LIKENESS)

    folder = tiny / "tiny-e5-small"
    model = BertModel.from_pretrained(folder, add_pooling_layer=False)
    golden("tiny-e5-small", folder, hide_controls(folder / "tokenizer.json"), 1, {0, 1, 2}, model, "mean", 300,
           texts.LIKENESS, "passage: ")

    folder = tiny / "tiny-e5-large"
    model = XLMRobertaModel.from_pretrained(folder, add_pooling_layer=False)
    golden("tiny-e5-large", folder, hide_controls(folder / "tokenizer.json"), 1, {0, 1, 2}, model, "mean", 300,
           texts.LIKENESS, "passage: ")


def linear(path):
    """A head as it is in its file."""
    tensors = load_file(path)
    out, width = tensors["weight"].shape
    head = torch.nn.Linear(width, out)
    head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return head.eval()


def outputs(tiny):
    """bge-m3's three outputs, as its authors define them, written down step by step: dense is the first token's row of
    norm 1; sparse is relu of a linear on each row, the largest of each token id, without <s>, <pad>, </s> and <unk>;
    multi is a linear on each row but the first, each of norm 1."""
    folder = tiny / "xlm-roberta"
    encode = hide_controls(folder / "tokenizer.json")
    model = XLMRobertaModel.from_pretrained(folder, add_pooling_layer=False).eval().float()
    sparse_linear, colbert_linear = (linear(folder / f"{name}.safetensors") for name in ("sparse_linear", "colbert_linear"))
    records = []
    for text in texts.OUTPUTS:
        ids = encode(text, truncation=True, max_length=4200, padding=False)["input_ids"]
        with torch.no_grad():
            rows = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            dense = rows[0] / rows[0].norm()
            raw = sparse_linear(rows)[:, 0].tolist()
            multi = torch.nn.functional.normalize(colbert_linear(rows[1:]), dim=-1)
        largest = {}
        for token, weight in zip(ids, raw):
            if token not in (0, 1, 2, 3):
                largest[token] = max(weight, largest.get(token, -1e9))
        # Which ids are there must not hang on the last digits.
        assert all(abs(weight) > 1e-3 for weight in largest.values()), (text[:60], largest)
        sparse = [[token, round(weight, 7)] for token, weight in sorted(largest.items()) if weight > 0]
        every = 1 if len(ids) < 150 else 64
        encoded = {name: base64.b64encode(tensor.contiguous().numpy().tobytes()).decode()
                   for name, tensor in (("dense", dense), ("multi", multi[::every]))}
        records.append({"text": text, "ids": ids, "sparse": sparse, "every": every, **encoded})
    files = {name: hashlib.sha256((folder / f"{name}.safetensors").read_bytes()).hexdigest()
             for name in ("model", "sparse_linear", "colbert_linear")}
    with open(HERE / "tiny-outputs.jsonl", "w", encoding="utf-8") as out:
        for line in [{"files": files, "texts": len(records)}, *records]:
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    print("tiny-outputs", len(records), "texts, longest", max(len(r["ids"]) for r in records), "tokens")


if __name__ == "__main__":
    if sys.argv[1] == "outputs":
        outputs(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
