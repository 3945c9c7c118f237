"""Writes a model of bge-m3's shape with generated weights, and texts as token ids: what every engine is given.

The same arguments give the same bytes. The weights are drawn so that activations stay as they are in a trained model
(norms near 1, attention that looks somewhere); nothing is learned, so vectors mean nothing and only their agreement
between engines counts.
"""

import json
import os

import numpy as np
from safetensors.numpy import save_file

WIDTH, HEADS, INNER, WORDS, POSITIONS = 1024, 16, 4096, 250_002, 8_194
MAX_LENGTH = POSITIONS - 2
SHORT, LONG = 16, MAX_LENGTH


def write_model(folder, layers):
    """The model's folder, as a hub would have it. A folder that is there is left alone."""
    if os.path.exists(os.path.join(folder, "model.safetensors")):
        return
    os.makedirs(os.path.join(folder, "1_Pooling"), exist_ok=True)
    write = lambda name, value: json.dump(value, open(os.path.join(folder, name), "w"), indent=1)
    write("config.json", {
        "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "hidden_size": WIDTH,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "intermediate_size": INNER,
        "hidden_act": "gelu", "layer_norm_eps": 1e-5, "max_position_embeddings": POSITIONS,
        "vocab_size": WORDS, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
        "position_embedding_type": "absolute", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02, "torch_dtype": "float32", "use_cache": False,
    })
    write("sentence_bert_config.json", {"max_seq_length": MAX_LENGTH, "do_lower_case": False})
    module = lambda idx, path, kind: {
        "idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
    write("modules.json", [
        module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling"), module(2, "2_Normalize", "Normalize")])
    write("1_Pooling/config.json", {
        "word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    write("tokenizer.json", tokenizer())
    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_LENGTH,
        "bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>",
        "unk_token": "<unk>", "mask_token": "<mask>"})
    part = os.path.join(folder, "weights.part")
    save_file(weights(layers), part, metadata={"format": "pt"})
    os.rename(part, os.path.join(folder, "model.safetensors"))


def weights(layers):
    random = np.random.default_rng(7)
    tensors = {}

    def draw(name, spread, *shape):
        tensors[name] = random.standard_normal(shape, dtype=np.float32) * np.float32(spread)

    def norm(name):
        draw(f"{name}.weight", 0.02, WIDTH)
        tensors[f"{name}.weight"] += 1
        draw(f"{name}.bias", 0.02, WIDTH)

    def linear(name, spread, out, width):
        draw(f"{name}.weight", spread, out, width)
        draw(f"{name}.bias", 0.02, out)

    draw("embeddings.word_embeddings.weight", 0.05, WORDS, WIDTH)
    draw("embeddings.position_embeddings.weight", 0.02, POSITIONS, WIDTH)
    draw("embeddings.token_type_embeddings.weight", 0.02, 1, WIDTH)
    norm("embeddings.LayerNorm")
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        # Scores with a spread of 1.6 after the scale: attention picks, as a trained one does.
        linear(f"{at}.attention.self.query", 0.04, WIDTH, WIDTH)
        linear(f"{at}.attention.self.key", 0.04, WIDTH, WIDTH)
        linear(f"{at}.attention.self.value", 0.03, WIDTH, WIDTH)
        linear(f"{at}.attention.output.dense", 0.03, WIDTH, WIDTH)
        norm(f"{at}.attention.output.LayerNorm")
        linear(f"{at}.intermediate.dense", 0.03, INNER, WIDTH)
        linear(f"{at}.output.dense", 0.02, WIDTH, INNER)
        norm(f"{at}.output.LayerNorm")
    linear("pooler.dense", 0.02, WIDTH, WIDTH)
    return tensors


def tokenizer():
    """The least that loads: no engine tokenises anything here."""
    special = lambda at, name: {"id": at, "content": name, "special": True, "single_word": False, "lstrip": False,
                                "rstrip": False, "normalized": False}
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = names + ["▁"] + list("abcdefghijklmnopqrstuvwxyz")
    template = {"id": "A", "type_id": 0}
    mark = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "decoder": None,
        "added_tokens": [special(at, name) for at, name in enumerate(names)],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "post_processor": {
            "type": "TemplateProcessing", "single": [mark("<s>"), {"Sequence": template}, mark("</s>")],
            "pair": [mark("<s>"), {"Sequence": template}, mark("</s>"), {"Sequence": {"id": "B", "type_id": 0}},
                     mark("</s>")],
            "special_tokens": {name: {"id": name, "ids": [at], "tokens": [name]}
                               for at, name in ((0, "<s>"), (2, "</s>"))},
        },
        "model": {"type": "Unigram", "unk_id": 3, "vocab": [[piece, -float(at)] for at, piece in enumerate(pieces)],
                  "byte_fallback": False},
    }


def write_ids(path, tokens):
    """`texts`: lengths log-normal (median 133, 8 to 512), `tokens` in all; `short` of 16 ids; `long` of 8,192."""
    random = np.random.default_rng(1234)
    text = lambda length: [0, *random.integers(5, WORDS, length - 2).tolist(), 2]
    texts, total = [], 0
    while total < tokens:
        length = int(np.clip(np.round(np.exp(random.normal(np.log(133), 0.8))), 8, 512))
        length = max(8, min(length, tokens - total))
        texts.append(text(length))
        total += length
    value = {"texts": texts, "short": text(SHORT), "long": text(LONG)}
    json.dump(value, open(path, "w"))
    return value
