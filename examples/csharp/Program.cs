// Runs a fused model once on ones: dotnet run -- libonnxfuse_ops.so fused.onnx D0 D1 ..., with NuGet's Microsoft.ML.OnnxRuntime.
using System;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

var (library, model) = (args[0], args[1]);
var sizes = args.Skip(2).Select(int.Parse).ToArray();
using var options = new SessionOptions();
options.AddSessionConfigEntry("onnxfuse.model", model);
options.RegisterCustomOpLibrary(library);
using var session = new InferenceSession(model, options);
var x = new DenseTensor<float>(sizes);
x.Buffer.Span.Fill(1);
using var results = session.Run(new[] { NamedOnnxValue.CreateFromTensor(session.InputMetadata.Keys.First(), x) });
foreach (var value in results.First().AsEnumerable<float>().Take(4)) Console.WriteLine(value);
