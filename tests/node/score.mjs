// node score.mjs RUNTIME raw.onnx < responses.json > heads.json
//
// RUNTIME: onnxruntime-node (native) or onnxruntime-web (WebAssembly, as in a browser).
// In:  {"logprobs": [[-0.1, -2.3], [-0.5, null]], "lengths": [2, 1]}, padded to one length with anything.
// Out: {"correct": [0.93, 0.41]}, a list a head; null for a response that cannot be scored.
import { readFileSync } from "node:fs";

const [runtime, model] = process.argv.slice(2);
const ort = await import(runtime);

const { logprobs, lengths } = JSON.parse(readFileSync(0, "utf8"));
const [n, T] = [logprobs.length, logprobs[0].length];
const values = Float32Array.from(logprobs.flat(), (value) => value ?? NaN);

const session = await ort.InferenceSession.create(new Uint8Array(readFileSync(model)));
const heads = await session.run({
  logprobs: new ort.Tensor("float32", values, [n, T]),
  lengths: new ort.Tensor("int64", BigInt64Array.from(lengths, BigInt), [n]),
});
const lists = Object.entries(heads).map(([name, tensor]) => [name, Array.from(tensor.data)]);
console.log(JSON.stringify(Object.fromEntries(lists)));
