// Runs a fused model once on ones: cargo run -- libonnxfuse_ops.so fused.onnx D0 D1 ..., with the crate ort.
use ort::{session::Session, value::Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [library, model, sizes @ ..] = arguments.as_slice() else {
        return Err("usage: onnxfuse-example LIBRARY fused.onnx SIZE...".into());
    };
    let sizes = sizes.iter().map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
    let mut session = Session::builder()?
        .with_config_entry("onnxfuse.model", model)?
        .with_operator_library(library)?
        .commit_from_file(model)?;
    let x = Tensor::from_array((sizes.clone(), vec![1f32; sizes.iter().product()]))?;
    let outputs = session.run(ort::inputs![x])?;
    let (_, y) = outputs[0].try_extract_tensor::<f32>()?;
    for value in y.iter().take(4) {
        println!("{value}");
    }
    Ok(())
}
