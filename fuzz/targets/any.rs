//! Entry point of all fuzz targets. The binary's name selects the target.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: ghostlab_fuzz::write_seeds(env!("CARGO_BIN_NAME")),
    |data: &[u8]| ghostlab_fuzz::run(env!("CARGO_BIN_NAME"), data)
);
