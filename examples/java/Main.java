// Runs a fused model once on ones: java -cp onnxruntime.jar Main.java libonnxfuse_ops.so fused.onnx D0 D1 ..., with Maven's
// com.microsoft.onnxruntime:onnxruntime.
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.Map;

public final class Main {
  public static void main(String[] args) throws OrtException {
    String library = args[0];
    String model = args[1];
    long[] sizes = Arrays.stream(args).skip(2).mapToLong(Long::parseLong).toArray();
    OrtEnvironment environment = OrtEnvironment.getEnvironment();
    try (OrtSession.SessionOptions options = new OrtSession.SessionOptions()) {
      options.addConfigEntry("onnxfuse.model", model);
      options.registerCustomOpLibrary(library);
      float[] data = new float[(int) Arrays.stream(sizes).reduce(1, (a, b) -> a * b)];
      Arrays.fill(data, 1);
      try (OrtSession session = environment.createSession(model, options);
          OnnxTensor x = OnnxTensor.createTensor(environment, FloatBuffer.wrap(data), sizes);
          OrtSession.Result results = session.run(Map.of(session.getInputNames().iterator().next(), x))) {
        FloatBuffer y = ((OnnxTensor) results.get(0)).getFloatBuffer();
        for (int i = 0; i < Math.min(4, y.capacity()); ++i) System.out.println(y.get(i));
      }
    }
  }
}
