"""ONNX models as tensor programs (extra ``onnx``)."""

from tileweave.frontends.onnx.reader import load

__all__ = ["load"]
