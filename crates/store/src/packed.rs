//! Packs: files that contain one or more small objects, to save inodes and file operations.
//!
//! File layout: a header with the number of members, one fixed-length line per member (key hash and position), all
//! payloads, and the records (`meta.json` content). Lines, records and payloads have separate checksums, so damaged
//! members are reported and the others stay usable. Payloads of an object are sorted by name.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::disk::Disk;
use super::lock;
use super::meta::{Meta, StoredFile};
use ghostlab_core::error::Result;
use ghostlab_core::files::sha256;

/// Maximum payload size of a small object in bytes.
pub(super) const MAX_SMALL_BYTES: usize = 1 << 20;

/// Maximum number of members per pack. The limit exists because all member lines are read at once.
pub(super) const MAX_PACK_MEMBERS: usize = 400;
/// Maximum size of a pack in bytes.
const MAX_PACK_BYTES: usize = 16 << 20;

/// Size of the first read from a pack, in bytes. It covers all member lines.
const FIRST_READ_BYTES: u64 = 1 << 16;

pub(super) const HEADER_PREFIX: &str = "ghostlab-pack 1 ";
/// Length of the header line in bytes.
const HEADER_BYTES: usize = HEADER_PREFIX.len() + 9;
/// Length of a member line in bytes.
const MEMBER_LINE_BYTES: usize = 64 + 3 * 17 + 17 + 1;

/// Position of a member in its pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PackMember {
    /// Hash of the member's key.
    pub(super) hash: String,
    /// Offset of the member's first payload in bytes.
    pub(super) payload_offset: u64,
    /// Offset of the member's record in bytes.
    record_offset: u64,
    record_bytes: u64,
}

impl PackMember {
    fn format_line(&self) -> String {
        let Self { hash, payload_offset, record_offset, record_bytes } = self;
        let text = format!("{hash} {payload_offset:016x} {record_offset:016x} {record_bytes:016x}");
        format!("{text} {}\n", &sha256::of_bytes(&text)[..16])
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let (text, check) = std::str::from_utf8(line).ok()?.strip_suffix('\n')?.rsplit_once(' ')?;
        if sha256::of_bytes(text)[..16] != *check {
            return None;
        }
        let mut words = text.split(' ');
        let hash = words.next()?.to_owned();
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        Some(Self { hash, payload_offset: number()?, record_offset: number()?, record_bytes: number()? })
    }
}

/// Small object to be written into a pack.
pub struct PackEntry {
    pub(super) hash: String,
    meta: Meta,
    /// Concatenated payloads, sorted by name.
    payloads: Vec<u8>,
}

impl PackEntry {
    pub(super) fn new(
        hash: &str,
        payloads: &[(&str, &[u8])],
        meta: impl FnOnce(BTreeMap<String, StoredFile>) -> Meta,
    ) -> Self {
        let by_name: BTreeMap<&str, &[u8]> = payloads.iter().copied().collect();
        let files = by_name.iter().map(|(name, bytes)| ((*name).to_owned(), StoredFile::from_bytes(bytes))).collect();
        let payloads = by_name.into_values().collect::<Vec<_>>().concat();
        Self { hash: hash.to_owned(), meta: meta(files), payloads }
    }

    pub(super) fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// Groups members into packs that respect the maximum size and number of members.
pub(super) fn split_into_packs(entries: Vec<PackEntry>) -> Vec<Vec<PackEntry>> {
    let mut packs: Vec<Vec<PackEntry>> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        bytes += entry.payloads.len();
        match packs.last_mut() {
            Some(pack) if pack.len() < MAX_PACK_MEMBERS && bytes <= MAX_PACK_BYTES => pack.push(entry),
            _ => {
                bytes = entry.payloads.len();
                packs.push(vec![entry]);
            }
        }
    }
    packs
}

/// Encodes a pack. Returns its bytes and the positions of its members.
pub(super) fn encode_pack(members: &[PackEntry]) -> Result<(Vec<u8>, Vec<PackMember>)> {
    let mut bytes = vec![0; HEADER_BYTES + members.len() * MEMBER_LINE_BYTES];
    let mut index = Vec::new();
    for PackEntry { hash, payloads, .. } in members {
        index.push(PackMember {
            hash: hash.clone(),
            payload_offset: bytes.len() as u64,
            record_offset: 0,
            record_bytes: 0,
        });
        bytes.extend_from_slice(payloads);
    }
    for (member, PackEntry { meta, .. }) in index.iter_mut().zip(members) {
        let text = meta.to_text()?;
        (member.record_offset, member.record_bytes) = (bytes.len() as u64, text.len() as u64);
        bytes.extend_from_slice(&text);
    }
    let head = format!("{HEADER_PREFIX}{:08}\n", members.len());
    let lines = [head].into_iter().chain(index.iter().map(PackMember::format_line)).collect::<String>();
    bytes[..lines.len()].copy_from_slice(lines.as_bytes());
    Ok((bytes, index))
}

/// Parses the member lines at the start of a pack. Returns the members and whether all lines are intact.
///
/// # Errors
/// Fails if the file is not a pack.
fn parse_member_lines(pack_start: &[u8]) -> Result<(Vec<PackMember>, bool), String> {
    let head = pack_start
        .get(..HEADER_BYTES)
        .and_then(|line| std::str::from_utf8(line).ok()?.strip_prefix(HEADER_PREFIX)?.strip_suffix('\n'));
    let count = head.and_then(|count| count.parse::<usize>().ok()).ok_or("the header line of the pack is invalid")?;
    let lines = pack_start[HEADER_BYTES..].chunks(MEMBER_LINE_BYTES).take(count);
    let members: Vec<PackMember> = lines.filter_map(PackMember::parse).collect();
    let is_complete = members.len() == count;
    Ok((members, is_complete))
}

/// Byte range of a pack, read into memory.
struct PackPart {
    start: u64,
    bytes: Vec<u8>,
}

impl PackPart {
    fn get(&self, start: u64, bytes: u64) -> Option<&[u8]> {
        let first = usize::try_from(start.checked_sub(self.start)?).ok()?;
        let end = first.checked_add(usize::try_from(bytes).ok()?)?;
        self.bytes.get(first..end)
    }

    fn parse_record(&self, member: &PackMember) -> Result<Meta, String> {
        Meta::from_text(
            self.get(member.record_offset, member.record_bytes).ok_or("the record exceeds the end of the file")?,
        )
    }
}

/// Reads the record of a member.
///
/// # Errors
/// Fails with a description of the damage.
pub(super) fn read_record(disk: &dyn Disk, path: &Path, member: &PackMember) -> Result<Meta, String> {
    let bytes = disk.read_part(path, member.record_offset, member.record_bytes).map_err(|error| error.to_string())?;
    PackPart { start: member.record_offset, bytes }.parse_record(member)
}

/// Reads the single member of a pack and its record.
///
/// # Errors
/// Fails if the file cannot be read. The inner error describes damage.
pub(super) fn read_single_member(disk: &dyn Disk, path: &Path) -> io::Result<Result<(PackMember, Meta), String>> {
    let pack_start = PackPart { start: 0, bytes: disk.read_part(path, 0, FIRST_READ_BYTES)? };
    let is_complete = (pack_start.bytes.len() as u64) < FIRST_READ_BYTES;
    Ok(parse_member_lines(&pack_start.bytes).and_then(|found| match found {
        (members, true) if members.len() == 1 => {
            let member = members[0].clone();
            let meta = if is_complete { pack_start.parse_record(&member) } else { read_record(disk, path, &member) };
            meta.map(|meta| (member, meta))
        }
        _ => Err("the member list does not describe exactly one object".to_owned()),
    }))
}

/// Pack member, and its record or a description of the damage.
pub(super) type MemberRecord = (PackMember, Result<Meta, String>);

/// Reads all members of a pack. Also returns whether its member lines are intact.
///
/// # Errors
/// Fails with a description of the damage.
pub(super) fn read_members(disk: &dyn Disk, path: &Path) -> Result<(Vec<MemberRecord>, bool), String> {
    let pack = PackPart { start: 0, bytes: disk.read(path).map_err(|error| error.to_string())? };
    let (members, is_intact) = parse_member_lines(&pack.bytes)?;
    Ok((
        members
            .into_iter()
            .map(|member| {
                let meta = pack.parse_record(&member);
                (member, meta)
            })
            .collect(),
        is_intact,
    ))
}

/// Returns the intact members of a pack, except those with the given hashes.
pub(super) fn read_members_except(disk: &dyn Disk, path: &Path, hashes: &[&str]) -> io::Result<Vec<PackEntry>> {
    let pack = PackPart { start: 0, bytes: disk.read(path)? };
    let members = parse_member_lines(&pack.bytes).map_or_else(|_| Vec::new(), |(members, _)| members);
    Ok(members
        .into_iter()
        .filter(|member| !hashes.contains(&&*member.hash))
        .filter_map(|member| {
            let meta = pack.parse_record(&member).ok()?;
            let payloads = pack.get(member.payload_offset, meta.bytes())?.to_vec();
            Some(PackEntry { hash: member.hash, meta, payloads })
        })
        .collect())
}

/// Index of the packs for one kind of object.
#[derive(Debug)]
pub(super) struct Packs {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    index: Mutex<PackIndex>,
}

#[derive(Debug, Default)]
struct PackIndex {
    /// Names of the indexed packs.
    files: HashSet<String>,
    /// Pack name and member position by key hash.
    members: HashMap<String, (String, PackMember)>,
}

impl PackIndex {
    fn add(&mut self, file: String, members: Vec<PackMember>) {
        self.members.extend(members.into_iter().map(|member| (member.hash.clone(), (file.clone(), member))));
        self.files.insert(file);
    }
}

impl Packs {
    /// Name of the pack folder within the folder of a kind.
    pub(super) const FOLDER: &str = "packs";

    pub(super) fn new(disk: Arc<dyn Disk>, kind_folder: &Path) -> Self {
        Self { disk, folder: kind_folder.join(Self::FOLDER), index: Mutex::default() }
    }

    /// Returns the file and position of a member. Scans for new packs if the member is unknown.
    pub(super) fn find(&self, hash: &str) -> Option<(PathBuf, PackMember)> {
        self.find_in_memory(hash).or_else(|| {
            self.refresh();
            self.find_in_memory(hash)
        })
    }

    /// Looks a member up again after reading at its known position failed.
    pub(super) fn find_refreshed(&self, hash: &str) -> Option<(PathBuf, PackMember)> {
        let mut index = lock(&self.index);
        if let Some((file, _)) = index.members.remove(hash) {
            index.files.remove(&file);
        }
        drop(index);
        self.find(hash)
    }

    /// Returns the hashes of all members.
    pub(super) fn hashes(&self) -> Vec<String> {
        self.refresh();
        lock(&self.index).members.keys().cloned().collect()
    }

    /// Updates the index with packs written or removed by other processes.
    pub(super) fn refresh(&self) {
        let mut index = lock(&self.index);
        let existing_files: HashSet<String> = self.disk.list(&self.folder).into_iter().collect();
        index.files.retain(|file| existing_files.contains(file));
        index.members.retain(|_, (file, _)| existing_files.contains(file));
        for file in existing_files {
            if index.files.contains(&file) {
                continue;
            }
            let pack_start = self.disk.read_part(&self.folder.join(&file), 0, FIRST_READ_BYTES).unwrap_or_default();
            // Unreadable packs are retried next time and reported by `cache verify`.
            let Ok((members, _)) = parse_member_lines(&pack_start) else { continue };
            index.add(file, members);
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the file and position of a member, from memory only.
    pub(super) fn find_in_memory(&self, hash: &str) -> Option<(PathBuf, PackMember)> {
        let index = lock(&self.index);
        index.members.get(hash).map(|(file, member)| (self.folder.join(file), member.clone()))
    }

    pub(super) fn insert_pack(&self, path: &Path, members: Vec<PackMember>) {
        let Some(file) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else { return };
        lock(&self.index).add(file, members);
    }

    pub(super) fn remove_pack(&self, path: &Path) {
        let Some(file) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else { return };
        let mut index = lock(&self.index);
        index.members.retain(|_, (pack, _)| *pack != file);
        index.files.remove(&file);
    }
}
