"""The same weights as an ONNX graph: exported from transformers, fused by ONNX Runtime's own optimiser for
transformers, then (for int8) quantised by its own dynamic quantisation, all with the settings its documentation gives."""

import json
import os
import shutil
import subprocess
import sys


def prepared(folder, int8):
    """Path of the graph; made once, in a process of its own, so that its memory is not counted."""
    home = os.path.join(folder, "onnx")
    file = os.path.join(home, "int8" if int8 else "f32", "model.onnx")
    if not os.path.exists(file):
        subprocess.run([sys.executable, __file__, folder, "int8" if int8 else "f32"], check=True)
    return file


def export(folder, into):
    import torch
    from transformers import AutoModel

    class First(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]

    # The plain attention: the optimiser knows its pattern and puts its own in its place.
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.randint(5, 1_000, (2, 7))
    axes = {"input_ids": {0: "texts", 1: "tokens"}, "attention_mask": {0: "texts", 1: "tokens"}, "first": {0: "texts"}}
    torch.onnx.export(First(model), (ids, torch.ones_like(ids)), os.path.join(into, "model.onnx"),
                      input_names=list(axes)[:2], output_names=["first"], dynamic_axes=axes, opset_version=17,
                      dynamo=False)


def fuse(source, into, config):
    from onnxruntime.transformers import optimizer

    # Level 0 here means: only what the transformers optimiser fuses. The rest (99, all) the session does itself.
    model = optimizer.optimize_model(source, model_type="bert", num_heads=config["num_attention_heads"],
                                     hidden_size=config["hidden_size"], opt_level=0)
    fused = model.get_fused_operator_statistics()
    layers = config["num_hidden_layers"]
    print({name: count for name, count in fused.items() if count}, file=sys.stderr)
    wanted = {"Attention": layers, "BiasGelu": layers, "SkipLayerNormalization": 2 * layers}
    if any(fused[name] < count for name, count in wanted.items()):
        sys.exit(f"the optimiser did not fuse all {layers} layers: this would be unfair to ONNX Runtime")
    model.save_model_to_file(os.path.join(into, "model.onnx"), use_external_data_format=True)


def quantise(source, into):
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # The type of what the fused operators give cannot be inferred, so it is said.
    quantize_dynamic(source, os.path.join(into, "model.onnx"), weight_type=QuantType.QInt8,
                     use_external_data_format=True, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})


def main(folder, kind):
    home = os.path.join(folder, "onnx")
    config = json.load(open(os.path.join(folder, "config.json")))
    part = os.path.join(home, f"{kind}.part")
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    if kind == "int8":
        quantise(prepared(folder, int8=False), part)
    else:
        raw = os.path.join(home, "raw.part")
        shutil.rmtree(raw, ignore_errors=True)
        os.makedirs(raw)
        export(folder, raw)
        fuse(os.path.join(raw, "model.onnx"), part, config)
        shutil.rmtree(raw)
    os.rename(part, os.path.join(home, kind))


if __name__ == "__main__":
    main(*sys.argv[1:])
