//! Runs a model with one input and one output, both float32, on numbers in a file, and prints what it computes:
//!
//!     TORCHMDLA_LIB=$(python -m torchmdla_runtime --library) cargo run -- model.tmdla numbers.bin

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::{null, null_mut};

const API_VERSION: u32 = 2;
const FLOAT32: i32 = 6;

#[repr(C)]
struct Options {
    api_version: u32,
    threads: i32,
    any_owner: i32,
}

#[repr(C)]
struct Info {
    name: *const c_char,
    dtype: i32,
    rank: i32,
    sizes: *const i64,
}

#[repr(C)]
struct TensorView {
    data: *mut c_void,
    dtype: i32,
    rank: i32,
    sizes: *const i64,
    strides: *const i64,
}

extern "C" {
    fn tmdla_last_error() -> *const c_char;
    fn tmdla_load(path: *const c_char, options: *const Options, model: *mut *mut c_void) -> c_int;
    fn tmdla_free(model: *mut c_void);
    fn tmdla_input(model: *const c_void, index: usize, info: *mut Info) -> c_int;
    fn tmdla_output(model: *const c_void, index: usize, info: *mut Info) -> c_int;
    fn tmdla_run(
        model: *const c_void,
        inputs: *const TensorView,
        input_count: usize,
        outputs: *const TensorView,
        output_count: usize,
    ) -> c_int;
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn check(status: c_int) -> Outcome<()> {
    if status == 0 {
        return Ok(());
    }
    let text = unsafe { CStr::from_ptr(tmdla_last_error()) };
    Err(text.to_string_lossy().into())
}

/// Float32, dense.
struct Tensor {
    sizes: Vec<i64>,
    data: Vec<f32>,
}

impl Tensor {
    fn of(info: &Info) -> Outcome<Tensor> {
        let sizes = match info.rank {
            0 => Vec::new(),
            rank => unsafe { std::slice::from_raw_parts(info.sizes, rank as usize) }.to_vec(),
        };
        if info.dtype != FLOAT32 || sizes.iter().any(|&size| size < 0) {
            return Err("the model is not of float32, or takes more sizes than one".into());
        }
        let count = sizes.iter().product::<i64>() as usize;
        Ok(Tensor { sizes, data: vec![0.0; count] })
    }

    fn view(&mut self) -> TensorView {
        TensorView {
            data: self.data.as_mut_ptr().cast(),
            dtype: FLOAT32,
            rank: self.sizes.len() as i32,
            sizes: self.sizes.as_ptr(),
            strides: null(),
        }
    }
}

struct Model(*mut c_void);

impl Model {
    fn load(path: &str) -> Outcome<Model> {
        let options = Options { api_version: API_VERSION, threads: 0, any_owner: 0 };
        let mut model = null_mut();
        check(unsafe { tmdla_load(CString::new(path)?.as_ptr(), &options, &mut model) })?;
        Ok(Model(model))
    }

    fn input(&self) -> Outcome<Tensor> {
        self.tensor(tmdla_input)
    }

    fn run(&self, input: &mut Tensor) -> Outcome<Tensor> {
        let mut output = self.tensor(tmdla_output)?;
        check(unsafe { tmdla_run(self.0, &input.view(), 1, &output.view(), 1) })?;
        Ok(output)
    }

    fn tensor(&self, describe: unsafe extern "C" fn(*const c_void, usize, *mut Info) -> c_int) -> Outcome<Tensor> {
        let mut info = Info { name: null(), dtype: 0, rank: 0, sizes: null() };
        check(unsafe { describe(self.0, 0, &mut info) })?;
        Tensor::of(&info)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { tmdla_free(self.0) }
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, model, numbers] = arguments.as_slice() else {
        return Err("usage: run_model model.tmdla numbers.bin".into());
    };
    let model = Model::load(model)?;
    let mut input = model.input()?;
    let bytes = std::fs::read(numbers)?;
    for (to, from) in input.data.iter_mut().zip(bytes.chunks_exact(4)) {
        *to = f32::from_ne_bytes(from.try_into()?);
    }
    for number in model.run(&mut input)?.data {
        println!("{number:.9e}");
    }
    Ok(())
}
