//! AMX emulation for tests on processors without AMX. A signal handler decodes and executes the illegal instructions.
//!
//! As on a real processor, unconfigured tiles and mismatched operand shapes cause a fault, which terminates the
//! process. The product follows the pseudocode of Intel's manual and shares no code with [`super::model`], so that
//! comparing the two detects addressing errors in the kernel.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Once;

/// Dimensions of a tile register, and number of tile registers.
const ROW_BYTES: usize = 64;
const ROWS: usize = 16;
const TILES: usize = 8;

#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    row_bytes: usize,
    data: [[u8; ROW_BYTES]; ROWS],
}

const EMPTY_TILE: Tile = Tile { rows: 0, row_bytes: 0, data: [[0; ROW_BYTES]; ROWS] };

thread_local! {
    static REGISTERS: UnsafeCell<[Tile; TILES]> = const { UnsafeCell::new([EMPTY_TILE; TILES]) };
}

/// Installs the emulator for this process.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only accesses its thread's registers and the memory that an instruction addresses.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction =
                on_illegal_instruction as extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()), 0);
        }
    });
}

extern "C" fn on_illegal_instruction(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the operating system passes the context of the thread, which is stopped at the illegal instruction.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        match Instruction::decode(registers) {
            Some(instruction) if instruction.execute() => {
                registers[libc::REG_RIP as usize] += instruction.length as i64;
            }
            // Restore the default handler. The instruction faults again and terminates the process.
            _ => {
                libc::signal(libc::SIGILL, libc::SIG_DFL);
            }
        }
    }
}

/// VEX prefixes that distinguish instructions with the same opcode.
#[derive(Clone, Copy, PartialEq)]
enum Prefix {
    None,
    X66,
    Xf3,
    Xf2,
}

struct Instruction {
    opcode: u8,
    prefix: Prefix,
    /// Tile registers in the `reg`, `rm` and `vvvv` fields.
    tiles: [usize; 3],
    /// Address and stride of a memory operand.
    memory: Option<(usize, usize)>,
    length: usize,
}

impl Instruction {
    /// Decodes the instruction at the program counter: a three-byte VEX prefix, opcode and operands.
    ///
    /// # Safety
    /// The program counter must point to an instruction.
    unsafe fn decode(registers: &[i64; 23]) -> Option<Self> {
        let start = registers[libc::REG_RIP as usize] as *const u8;
        // SAFETY: an AMX instruction has at least five bytes. Later bytes are read only if its operands require them.
        let byte = |offset: usize| unsafe { *start.add(offset) };
        let first = byte(1);
        let second = byte(2);
        // Require opcode map 0F38, W0 and a vector length of 128 bits.
        if byte(0) != 0xc4 || first & 0x1f != 2 || second & 0x84 != 0 {
            return None;
        }
        let prefix = [Prefix::None, Prefix::X66, Prefix::Xf3, Prefix::Xf2][usize::from(second & 3)];
        let opcode = byte(3);
        let operands = byte(4);
        let vvvv = usize::from(!second >> 3 & 15);
        let mode = operands >> 6;
        let reg = usize::from(operands >> 3 & 7);
        let rm = usize::from(operands & 7);
        let tiles = [reg, rm, vvvv];
        if mode == 3 {
            return Some(Self { opcode, prefix, tiles, memory: None, length: 5 });
        }
        let mut offset = 5;
        let (base, index) = if rm == 4 {
            let sib = byte(offset);
            offset += 1;
            let index = usize::from(sib >> 3 & 7) + register_extension(0x40, first);
            let stride = if index == 4 { 0 } else { read_general_register(registers, index) << (sib >> 6) };
            (usize::from(sib & 7) + register_extension(0x20, first), stride)
        } else {
            (rm + register_extension(0x20, first), 0)
        };
        if mode == 0 && base & 7 == 5 {
            return None;
        }
        let displacement = match mode {
            1 => isize::from(byte(offset) as i8),
            2 => i32::from_le_bytes([byte(offset), byte(offset + 1), byte(offset + 2), byte(offset + 3)]) as isize,
            _ => 0,
        };
        let length = offset + [0, 1, 4][usize::from(mode)];
        let memory = Some((read_general_register(registers, base).wrapping_add_signed(displacement), index));
        Some(Self { opcode, prefix, tiles, memory, length })
    }

    /// Executes the instruction. Returns whether it is supported and does not fault.
    ///
    /// # Safety
    /// A memory operand must have the size given by the tile configuration.
    unsafe fn execute(&self) -> bool {
        REGISTERS.with(|registers| {
            // SAFETY: the handler runs on this thread, and no other borrow is active.
            let registers = unsafe { &mut *registers.get() };
            match (self.opcode, self.prefix, self.memory) {
                // SAFETY: the caller guarantees that the memory operand is large enough.
                (0x49, Prefix::None, Some((config, _))) => unsafe { configure(registers, config as *const u8) },
                (0x49, Prefix::None, None) => {
                    *registers = [EMPTY_TILE; TILES];
                    true
                }
                (0x49, Prefix::Xf2, None) => {
                    registers[self.tiles[0]].data = EMPTY_TILE.data;
                    registers[self.tiles[0]].rows > 0
                }
                // SAFETY: the caller guarantees that the memory operand is large enough.
                (0x4b, Prefix::Xf2 | Prefix::X66, Some(address)) => unsafe {
                    load(&mut registers[self.tiles[0]], address)
                },
                // SAFETY: the caller guarantees that the memory operand is large enough.
                (0x4b, Prefix::Xf3, Some(address)) => unsafe { store(&registers[self.tiles[0]], address) },
                (0x5c, Prefix::Xf3, None) => multiply(registers, self.tiles),
                _ => false,
            }
        })
    }
}

/// Returns 8 if the inverted bit `bit` of the VEX prefix extends a register number, and 0 otherwise.
fn register_extension(bit: u8, prefix_byte: u8) -> usize {
    usize::from(prefix_byte & bit == 0) * 8
}

/// Returns the value of a general-purpose register by its instruction encoding.
fn read_general_register(registers: &[i64; 23], number: usize) -> usize {
    let names = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    registers[names[number] as usize] as usize
}

/// Configures the tiles from an operand of `LDTILECFG`. Returns false if the operand is invalid.
///
/// # Safety
/// `config` must point to 64 readable bytes.
unsafe fn configure(registers: &mut [Tile; TILES], config: *const u8) -> bool {
    // SAFETY: the caller guarantees 64 readable bytes.
    let config = unsafe { std::slice::from_raw_parts(config, 64) };
    let reserved = config[2..16].iter().chain(&config[32..48]).chain(&config[56..64]);
    if config[0] != 1 || config[1] != 0 || reserved.copied().any(|byte| byte != 0) {
        return false;
    }
    *registers = [EMPTY_TILE; TILES];
    registers.iter_mut().enumerate().all(|(index, tile)| {
        tile.rows = usize::from(config[48 + index]);
        tile.row_bytes = usize::from(u16::from_le_bytes([config[16 + 2 * index], config[17 + 2 * index]]));
        tile.rows <= ROWS && tile.row_bytes <= ROW_BYTES && (tile.rows == 0) == (tile.row_bytes == 0)
    })
}

/// Loads the rows of a tile from memory. Returns false if the tile is not configured.
///
/// # Safety
/// For each row `r` of the tile, the `row_bytes` bytes at address `start + r · stride` must be valid for reads.
unsafe fn load(tile: &mut Tile, (start, stride): (usize, usize)) -> bool {
    tile.data = EMPTY_TILE.data;
    for row in 0..tile.rows {
        let source = (start + row * stride) as *const u8;
        // SAFETY: the caller guarantees that the row is readable.
        tile.data[row][..tile.row_bytes].copy_from_slice(unsafe { std::slice::from_raw_parts(source, tile.row_bytes) });
    }
    tile.rows > 0
}

/// Stores the rows of a tile to memory. Returns false if the tile is not configured.
///
/// # Safety
/// For each row `r` of the tile, the `row_bytes` bytes at address `start + r · stride` must be valid for writes.
unsafe fn store(tile: &Tile, (start, stride): (usize, usize)) -> bool {
    for row in 0..tile.rows {
        let destination = (start + row * stride) as *mut u8;
        // SAFETY: the caller guarantees that the row is writable.
        unsafe { destination.copy_from_nonoverlapping(tile.data[row].as_ptr(), tile.row_bytes) };
    }
    tile.rows > 0
}

impl Tile {
    fn word(&self, row: usize, column: usize) -> u32 {
        let bytes = &self.data[row][4 * column..][..4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn half(&self, row: usize, column: usize) -> f32 {
        let bytes = &self.data[row][2 * column..][..2];
        f32::from_bits(u32::from_le_bytes([0, 0, bytes[0], bytes[1]]))
    }
}

/// Executes `TDPBF16PS` according to its pseudocode. Returns false if the shapes of the tiles do not match.
fn multiply(registers: &mut [Tile; TILES], [sums, left, right]: [usize; 3]) -> bool {
    let left = registers[left];
    let right = registers[right];
    let sums = &mut registers[sums];
    let fits = sums.rows == left.rows && sums.row_bytes == right.row_bytes && left.row_bytes == 4 * right.rows;
    if sums.rows == 0 || right.rows == 0 || !fits {
        return false;
    }
    for m in 0..sums.rows {
        let mut temp = [0.0f32; ROW_BYTES / 2];
        for k in 0..left.row_bytes / 4 {
            for n in 0..sums.row_bytes / 4 {
                for part in 0..2 {
                    let a = left.half(m, 2 * k + part);
                    let b = right.half(k, 2 * n + part);
                    temp[2 * n + part] =
                        flush_denormal(flush_denormal(a).mul_add(flush_denormal(b), temp[2 * n + part]));
                }
            }
        }
        for n in 0..sums.row_bytes / 4 {
            let both = flush_denormal(temp[2 * n] + temp[2 * n + 1]);
            let sum = flush_denormal(flush_denormal(f32::from_bits(sums.word(m, n))) + both);
            sums.data[m][4 * n..][..4].copy_from_slice(&sum.to_bits().to_le_bytes());
        }
        sums.data[m][sums.row_bytes..].fill(0);
    }
    sums.data[sums.rows..].fill([0; ROW_BYTES]);
    true
}

fn flush_denormal(x: f32) -> f32 {
    if x.is_subnormal() { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}
