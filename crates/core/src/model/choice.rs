//! Selection of the engine for a backbone, given the user's request and this machine.

use std::path::Path;
use std::sync::Arc;

use super::candle::{self, CandleEngine, DeviceName, FloatType, Placement};
use super::compute_type::ComputeType;
use super::config::Config;
use super::decoder::Decoder;
use super::engine::{Engine, EngineId};
use super::kernel_family::KernelFamily;
use super::products::Products;
use super::program::Program;
use crate::error::{Error, Result};
use crate::named::named;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineName {
    /// ghostlab's own kernels, on the CPU.
    Cpu,
    /// candle, on any device and in any float type.
    Candle,
}

named!(EngineName: Cpu = "cpu", Candle = "candle");

/// Requested engine. `None` fields select the best option for the machine and backbone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineRequest {
    pub engine: Option<EngineName>,
    pub device: Option<DeviceName>,
    pub dtype: Option<ComputeType>,
    /// Kernel family of the `cpu` engine.
    pub kernels: Option<KernelFamily>,
}

/// Engine that runs a backbone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineChoice {
    /// The `cpu` engine with the given matrix products.
    Cpu(Products),
    Candle(Placement),
}

impl EngineRequest {
    /// Selects the engine for a backbone. The device defaults to the CPU if the `cpu` engine is requested, and
    /// otherwise to the best available device. The dtype defaults to f32 on the CPU, and elsewhere to the stored dtype.
    /// The engine defaults to `cpu` if it supports the device and dtype, and otherwise to candle.
    ///
    /// # Errors
    /// Fails if the `cpu` engine is requested with an unsupported device or dtype, if the kernel family does not
    /// support the dtype, or if weight files cannot be read. [`EngineChoice::check`] checks whether this machine can
    /// run the chosen engine.
    pub fn choose(self, folder: &Path) -> Result<EngineChoice> {
        let device = match self.device {
            Some(device) => device,
            None if self.engine == Some(EngineName::Cpu) => DeviceName::Cpu,
            None => DeviceName::detect(),
        };
        let dtype = match self.dtype {
            Some(dtype) => dtype,
            None if device == DeviceName::Cpu => ComputeType::F32,
            None => FloatType::stored_in(folder)?.into(),
        };
        let cpu_products = match (device, dtype) {
            (DeviceName::Cpu, ComputeType::F32) => Some(Products::F32),
            (DeviceName::Cpu, ComputeType::Bf16) => {
                Some(Products::bf16(self.kernels.unwrap_or_else(KernelFamily::detect)))
            }
            (DeviceName::Cpu, ComputeType::Bf16x3) => Some(Products::Bf16x3),
            (DeviceName::Cpu, ComputeType::Bf16x6) => Some(Products::Bf16x6),
            _ => None,
        };
        match (self.engine, cpu_products) {
            (None | Some(EngineName::Cpu), Some(products)) => {
                self.check_kernels(products)?;
                Ok(EngineChoice::Cpu(products))
            }
            (Some(EngineName::Cpu), None) => {
                Err(Error::bad_input("the engine `cpu` does not support this device and float type")
                    .expected("--device cpu with --dtype f32, bf16, bf16x3 or bf16x6")
                    .found(format!("{dtype} on {device}"))
                    .hint("use --engine candle for other devices and f16"))
            }
            _ if self.kernels.is_some() => Err(Error::bad_input("--kernels only applies to the engine `cpu`")
                .expected("--engine cpu with --dtype f32, bf16, bf16x3 or bf16x6")
                .found(format!("candle {dtype} on {device}"))
                .hint("remove --kernels")),
            _ => match dtype.float() {
                Some(dtype) => Ok(EngineChoice::Candle(Placement { device, dtype })),
                None => Err(Error::bad_input(format!("only the engine `cpu` supports --dtype {dtype}"))
                    .expected("--device cpu with --engine cpu")
                    .found(format!("candle on {device}"))
                    .hint("use --dtype f32, or --device cpu --engine cpu")),
            },
        }
    }

    /// Checks that the requested kernel family supports `products`.
    fn check_kernels(self, products: Products) -> Result<()> {
        if self.kernels.is_none_or(|kernels| kernels == products.kernels()) {
            return Ok(());
        }
        let (family, types) = match products.kernels() {
            KernelFamily::Portable => (KernelFamily::Amx, "bf16, bf16x3 or bf16x6"),
            KernelFamily::Amx => (KernelFamily::Portable, "f32 or bf16"),
        };
        Err(Error::bad_input(format!("the kernel family `{family}` does not support {}", products.name()))
            .expected(format!("--dtype {types}"))
            .found(format!("--dtype {}", products.name()))
            .hint("change --dtype, or remove --kernels"))
    }

    /// Returns why a build with GPU support cannot use a GPU. Returns `None` for builds without GPU support, if a GPU
    /// is available, or if the request selects a device or the `cpu` engine.
    pub fn without_gpu(self) -> Option<Error> {
        if self.device.is_some() || self.engine == Some(EngineName::Cpu) {
            return None;
        }
        let gpu = [DeviceName::Cuda(0), DeviceName::Metal].into_iter().find(|device| device.is_built())?;
        gpu.open().err()
    }
}

impl EngineChoice {
    pub fn id(self) -> EngineId {
        match self {
            Self::Cpu(products) => products.engine_id(),
            Self::Candle(placement) => placement.id(),
        }
    }

    pub fn device(self) -> DeviceName {
        match self {
            Self::Cpu(_) => DeviceName::Cpu,
            Self::Candle(placement) => placement.device,
        }
    }

    /// Returns the default number of tokens per batch. GPUs use larger batches to amortize the launch overhead.
    pub fn batch_tokens(self) -> usize {
        if self.device() == DeviceName::Cpu { 2048 } else { candle::MAX_PIECE_TOKENS }
    }

    /// Checks that this machine's processor can run the kernels of the `cpu` engine. Accepts every choice of candle.
    ///
    /// # Errors
    /// See [`Products::check`].
    pub fn check(self) -> Result<()> {
        match self {
            Self::Cpu(products) => products.check(),
            Self::Candle(_) => Ok(()),
        }
    }

    /// Loads a backbone. `max_weight_bytes` limits the weights in host memory, and `max_device_bytes` limits the total
    /// memory used on a GPU.
    ///
    /// # Errors
    /// See [`Self::check`], [`Decoder::load_within`] and [`CandleEngine::load`].
    pub fn load(
        self,
        config: Config,
        folder: &Path,
        max_weight_bytes: u64,
        max_device_bytes: Option<u64>,
    ) -> Result<Arc<dyn Engine>> {
        self.check()?;
        Ok(match self {
            Self::Cpu(products) => Arc::new(Decoder::load_within(config, folder, products, max_weight_bytes)?),
            Self::Candle(placement) => {
                let on_cpu = placement.device == DeviceName::Cpu;
                let max_bytes = if on_cpu { Some(max_weight_bytes) } else { max_device_bytes };
                Arc::new(CandleEngine::load(config, folder, placement, max_bytes)?)
            }
        })
    }

    /// Returns the total size in bytes of the weights on their device.
    pub fn weight_bytes(self, config: &Config) -> u64 {
        match self {
            Self::Cpu(products) => config.weight_bytes(products),
            Self::Candle(placement) => candle::weight_bytes(config, placement.dtype),
        }
    }

    /// Returns the size in bytes of the weights that a program needs on their device.
    pub fn needed_bytes(self, config: &Config, program: &Program) -> u64 {
        let (layer_parameter_bytes, embedding_parameter_bytes, one_table) = match self {
            // The `cpu` engine stores the embedding and the output projection in different layouts, so a tied table
            // counts twice.
            Self::Cpu(products) => (products.bytes(), Products::F32.bytes(), false),
            Self::Candle(placement) => (placement.dtype.bytes(), placement.dtype.bytes(), true),
        };
        config.needed_bytes(program, layer_parameter_bytes, embedding_parameter_bytes, one_table)
    }

    /// Returns the size in bytes of the weights kept in host memory within `budget` bytes. It is at least the size of
    /// the largest part, such as a layer, because parts are loaded or transferred as a whole.
    pub fn held_bytes(self, config: &Config, budget: u64) -> u64 {
        let products = if let Self::Cpu(products) = self { products } else { Products::F32 };
        let largest = match self {
            Self::Cpu(products) => config.largest_part_bytes(products),
            Self::Candle(_) => config.layer_bytes(products).max(config.head_bytes(products)),
        };
        match self {
            Self::Candle(placement) if placement.device != DeviceName::Cpu => largest,
            _ => self.weight_bytes(config).min(budget.max(largest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Operator;

    fn engine_request(engine: &str, device: &str, dtype: &str) -> EngineRequest {
        let engine = engine.parse().ok();
        let device = device.parse().ok();
        let dtype = dtype.parse().ok();
        EngineRequest { engine, device, dtype, kernels: None }
    }

    #[test]
    fn cpu_engine_is_default_for_f32_and_bf16() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch/llama-gqa");
        for ((engine, device, dtype), expected) in [
            (("", "cpu", ""), EngineChoice::Cpu(Products::F32)),
            (("cpu", "", ""), EngineChoice::Cpu(Products::F32)),
            (("", "cpu", "f32"), EngineChoice::Cpu(Products::F32)),
            (("", "cpu", "bf16"), EngineChoice::Cpu(Products::bf16(KernelFamily::detect()))),
            (("cpu", "", "bf16"), EngineChoice::Cpu(Products::bf16(KernelFamily::detect()))),
            (("candle", "cpu", ""), candle_on_cpu(FloatType::F32)),
            (("candle", "cpu", "bf16"), candle_on_cpu(FloatType::Bf16)),
            (("", "cpu", "bf16x3"), EngineChoice::Cpu(Products::Bf16x3)),
            (("cpu", "", "bf16x6"), EngineChoice::Cpu(Products::Bf16x6)),
            (("", "cpu", "f16"), candle_on_cpu(FloatType::F16)),
            (("candle", "cpu", "f16"), candle_on_cpu(FloatType::F16)),
        ] {
            assert_eq!(
                engine_request(engine, device, dtype).choose(&folder).unwrap(),
                expected,
                "{engine} {device} {dtype}"
            );
        }
        for (engine, device, dtype) in [("cpu", "cuda", ""), ("cpu", "cpu", "f16"), ("cpu", "", "f16")] {
            let error = engine_request(engine, device, dtype).choose(&folder).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains("--engine candle"), "{error}");
        }
        for (engine, device, dtype) in [("candle", "cpu", "bf16x3"), ("", "cuda", "bf16x6")] {
            let error = engine_request(engine, device, dtype).choose(&folder).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains("--engine cpu"), "{error}");
        }
        // With an explicit device, the dtype defaults to the stored one.
        let placement = Placement { device: DeviceName::Cuda(1), dtype: FloatType::F32 };
        assert_eq!(engine_request("", "cuda:1", "").choose(&folder).unwrap(), EngineChoice::Candle(placement));
    }

    fn candle_on_cpu(dtype: FloatType) -> EngineChoice {
        EngineChoice::Candle(Placement { device: DeviceName::Cpu, dtype })
    }

    #[test]
    fn kernel_family_determines_the_device_class() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch/llama-gqa");
        for (dtype, kernels, expected) in [
            ("bf16", "portable", "cpu bf16 on cpu"),
            ("bf16", "amx", "cpu bf16 on cpu-amx"),
            ("bf16x3", "amx", "cpu bf16x3 on cpu-amx"),
            ("f32", "portable", "cpu f32 on cpu"),
        ] {
            let id = choose_with("", dtype, kernels, &folder).unwrap().id();
            assert!(id.to_string() == expected && id.is_on_cpu(), "{dtype} {kernels}: {id}");
        }
        for (engine, dtype, kernels, named) in [
            ("", "f32", "amx", "--dtype bf16"),
            ("", "bf16x3", "portable", "--dtype f32"),
            ("", "f16", "portable", "remove --kernels"),
            ("candle", "bf16", "amx", "remove --kernels"),
        ] {
            let error = choose_with(engine, dtype, kernels, &folder).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(named), "{error}");
        }
    }

    fn choose_with(engine: &str, dtype: &str, kernels: &str, folder: &Path) -> Result<EngineChoice> {
        let kernels = Some(kernels.parse().unwrap());
        EngineRequest { kernels, ..engine_request(engine, "cpu", dtype) }.choose(folder)
    }

    #[test]
    fn unsupported_kernels_are_rejected_with_an_alternative() {
        for (products, alternative) in [
            (Products::Bf16Amx, "--kernels portable"),
            (Products::Bf16x3, "--dtype f32"),
            (Products::Bf16x6, "--dtype f32"),
        ] {
            let refused = EngineChoice::Cpu(products).check().err();
            assert_eq!(refused.is_some(), KernelFamily::detect() == KernelFamily::Portable);
            if let Some(error) = refused {
                assert!(error.exit_code() == 3 && error.to_string().contains(alternative), "{error}");
            }
        }
        assert!(EngineChoice::Cpu(Products::Bf16).check().is_ok());
    }

    #[test]
    fn gpu_build_explains_why_it_runs_on_the_cpu() {
        for request in [engine_request("", "cpu", ""), engine_request("cpu", "", "")] {
            assert!(request.without_gpu().is_none(), "{request:?}");
        }
        let built = DeviceName::Cuda(0).is_built() || DeviceName::Metal.is_built();
        let on_cpu = DeviceName::detect() == DeviceName::Cpu;
        assert_eq!(EngineRequest::default().without_gpu().is_some(), built && on_cpu);
    }

    #[test]
    fn weight_bytes_count_tied_embeddings_once() {
        let config = Config::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch/llama-gqa"));
        let config = Config { tied_embeddings: true, ..config.unwrap() };
        let untied = Config { tied_embeddings: false, ..config.clone() };
        let dense = Program::dense(config.layers);
        let table = (config.vocab * config.hidden) as u64;
        let operator = Operator::dense(config.hidden, vec![1.0; config.hidden * config.hidden]).unwrap();
        let repaired = Program::pruned(config.layers, &[1], |_| Some(operator.clone()));
        let pruned = Program::pruned(config.layers, &[1], |_| None);
        for dtype in FloatType::ALL {
            let choice = EngineChoice::Candle(Placement { device: DeviceName::Cpu, dtype });
            // The dense program needs exactly the weights of the backbone.
            for config in [&config, &untied] {
                assert_eq!(choice.needed_bytes(config, &dense), choice.weight_bytes(config), "{dtype:?}");
            }
            let more = choice.needed_bytes(&untied, &dense) - choice.needed_bytes(&config, &dense);
            assert_eq!(more, dtype.bytes() * table);
            let operator_bytes = choice.needed_bytes(&config, &repaired) - choice.needed_bytes(&config, &pruned);
            assert_eq!(operator_bytes, 4 * (config.hidden * config.hidden) as u64, "{dtype:?}");
        }
        // The `cpu` engine stores the projection in a separate layout.
        let cpu = EngineChoice::Cpu(Products::F32);
        assert_eq!(cpu.needed_bytes(&config, &dense), cpu.weight_bytes(&untied));
    }

    #[test]
    fn device_weights_are_not_counted_on_the_host() {
        let config = Config::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch/llama-gqa"));
        let config = config.unwrap();
        let largest = config.layer_bytes(Products::F32).max(config.head_bytes(Products::F32));
        let cpu = EngineChoice::Cpu(Products::F32);
        assert_eq!(candle_on(DeviceName::Cuda(0), FloatType::Bf16).held_bytes(&config, u64::MAX), largest);
        assert_eq!(cpu.held_bytes(&config, u64::MAX), config.weight_bytes(Products::F32));
        assert_eq!(cpu.held_bytes(&config, 0), largest);
        let half = candle_on(DeviceName::Cpu, FloatType::F16).held_bytes(&config, u64::MAX);
        assert_eq!(2 * half, candle_on(DeviceName::Cpu, FloatType::F32).held_bytes(&config, u64::MAX));
    }

    fn candle_on(device: DeviceName, dtype: FloatType) -> EngineChoice {
        EngineChoice::Candle(Placement { device, dtype })
    }
}
