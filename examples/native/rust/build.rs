// Where the library is: TORCHMDLA_LIB=$(python -m torchmdla_runtime --library) cargo build
fn main() {
    println!("cargo:rerun-if-env-changed=TORCHMDLA_LIB");
    let folder = std::env::var("TORCHMDLA_LIB").expect("TORCHMDLA_LIB is the folder of libtorchmdla_runtime.so");
    println!("cargo:rustc-link-search=native={folder}");
    println!("cargo:rustc-link-lib=dylib=torchmdla_runtime");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
}
