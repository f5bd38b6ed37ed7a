//! SHA-256 of bytes and files, in hexadecimal.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

pub fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn of_bytes(bytes: impl AsRef<[u8]>) -> String {
    hex(Sha256::digest(bytes))
}

/// Hashes a file. Also returns its size in bytes.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn of_file(path: &Path) -> io::Result<(String, u64)> {
    of_reader(&mut File::open(path)?)
}

/// Hashes the remaining bytes of a reader. Also returns their number.
///
/// # Errors
/// Fails if reading fails.
pub fn of_reader(reader: &mut impl Read) -> io::Result<(String, u64)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let read = reader.read(&mut buffer)?;
        if read == 0 {
            return Ok((hex(hash.finalize()), bytes));
        }
        hash.update(&buffer[..read]);
        bytes += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_of_a_file_matches_hash_of_its_bytes() {
        // Expected value from `printf abc | sha256sum`.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(of_bytes("abc"), expected);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(of_file(&path).unwrap(), (expected.to_string(), 3));
    }
}
