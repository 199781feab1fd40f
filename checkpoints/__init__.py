"""The artefact: a folder with a manifest, an ONNX graph, golden rows and a model card."""
