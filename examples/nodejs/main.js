// Runs a fused model once on ones: node main.js fused.onnx D0 D1 ..., with npm's onnxruntime-node.
//
// That package has no call that registers a library of operators, so the model runs as its original nodes: right, and as fast
// as before it was fused.
const ort = require('onnxruntime-node');

async function main() {
  const [model, ...sizes] = process.argv.slice(2);
  const session = await ort.InferenceSession.create(model, {executionProviders: ['cpu']});
  const dims = sizes.map(Number);
  const data = new Float32Array(dims.reduce((a, b) => a * b, 1)).fill(1);
  const results = await session.run({[session.inputNames[0]]: new ort.Tensor('float32', data, dims)});
  for (const value of results[session.outputNames[0]].data.slice(0, 4)) console.log(Number(value.toPrecision(6)).toString());
}

main().catch((error) => {
  console.error(`error: ${error.message}`);
  process.exit(2);
});
