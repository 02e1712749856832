//! A file system of one's own: a small one, to be filled, or one in a file, whose power can be cut.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::exhaustive_enums,
    clippy::unwrap_used,
    reason = "support of tests, taken by path: each takes a part, and a panic is a failed test"
)]

use std::{
    ffi::OsStr,
    fs,
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// Why there is none on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// Nobody can do anything about it from here.
    Right(&'static str),
    /// It can be installed.
    Tool(&'static str),
}

/// What is missing for a small one.
pub fn lack_for_small() -> Option<Lack> {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|it| it.strip_prefix("CapEff:"));
    let rights = rights.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    if (rights.unwrap_or_default() >> CAP_SYS_ADMIN) & 1 == 0 {
        return Some(Lack::Right(
            "only root may mount a file system, on Linux and outside of a confined container",
        ));
    }
    let tools = ["unshare", "mount", "umount"];
    tools.into_iter().find_map(lack_of)
}

/// What is missing for one in a file.
pub fn lack_for_file() -> Option<Lack> {
    if let Some(lack) = lack_for_small() {
        return Some(lack);
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some(Lack::Right("there are no loop devices (/dev/loop-control)"));
    }
    let tools = ["mkfs.ext4", "fsfreeze", "losetup"];
    tools.into_iter().find_map(lack_of)
}

fn lack_of(tool: &'static str) -> Option<Lack> {
    let mut asked = command(tool);
    let asked = asked.arg("-V").stderr(Stdio::null()).stdout(Stdio::null());
    match asked.status() {
        Err(error) if error.kind() == ErrorKind::NotFound => Some(Lack::Tool(tool)),
        _ => None,
    }
}

/// It ends with this value. It is mounted in the mount namespace of the process, which should be one of its
/// own: then it ends with the process too.
#[derive(Debug)]
pub struct Disk {
    directory: TempDir,
}

impl Disk {
    /// In memory.
    pub fn small(mebibytes: u32) -> Self {
        let disk = Self::new();
        let size = format!("size={mebibytes}m,mode=755");
        let what: [&OsStr; 5] = ["-t", "tmpfs", "-o", &size, "tmpfs"].map(OsStr::new);
        disk.mount(&what);
        disk
    }

    /// Ext4 in a file. Nothing is written into the file but what somebody flushes, and what the kernel finds
    /// to be old.
    pub fn in_a_file(mebibytes: u64) -> Self {
        let disk = Self::new();
        let image = fs::File::create(disk.image()).unwrap();
        image.set_len(mebibytes << 20).unwrap();
        drop(image);
        run("mkfs.ext4", &["-q".as_ref(), disk.image().as_os_str()]);
        disk.mount_image();
        disk
    }

    fn new() -> Self {
        let directory = TempDir::with_prefix("disk").unwrap();
        // The server's user passes through it.
        set_open(directory.path());
        fs::create_dir(directory.path().join("mounted")).unwrap();
        Self { directory }
    }

    fn mount_image(&self) {
        // By itself the journal writes every five seconds, also what nobody has flushed.
        let options = ["-o", "loop,commit=600"].map(OsStr::new);
        self.mount(&[options[0], options[1], self.image().as_os_str()]);
    }

    fn mount(&self, what: &[&OsStr]) {
        let path = self.path();
        run("mount", &[what, &[path.as_os_str()]].concat());
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mounted")
    }

    /// Leaves no room. A second time it takes what has become free.
    pub fn fill(&self) {
        let mut options = fs::OpenOptions::new();
        let filler = options.create(true).append(true).open(self.filler());
        let mut filler = filler.unwrap();
        for size in [1 << 20, 1 << 12] {
            let zeros = vec![0; size];
            let error = loop {
                if let Err(error) = filler.write_all(&zeros) {
                    break error;
                }
            };
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        }
    }

    pub fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    /// Flushes all that was written so far.
    pub fn flush(&self) {
        run("sync", &["-f".as_ref(), self.path().as_os_str()]);
    }

    /// Whatever is written waits until the value is dropped.
    pub fn stall(&self) -> Stalled<'_> {
        run("fsfreeze", &["-f".as_ref(), self.path().as_os_str()]);
        Stalled(self)
    }

    /// Keeps what is in the file at one moment. Those who write should be stopped.
    pub fn copy(&self) -> Kept {
        let copy = self.directory.path().join("copy");
        let device = self.device();
        for _ in 0..50 {
            let before = written(&device);
            let image = self.image();
            let sparse = OsStr::new("--sparse=always");
            run("cp", &[sparse, image.as_os_str(), copy.as_os_str()]);
            // Else the copy is of more than one moment.
            if before.is_some() && written(&device) == before {
                return Kept(copy);
            }
        }
        panic!("{device} never stood still");
    }

    /// How often anybody has had something flushed into the file.
    pub fn flushes(&self) -> u64 {
        numbers_of(&self.device())[15]
    }

    /// The power is back, and all that was not in the file is gone. Nobody may be using it.
    pub fn go_back_to(&self, copy: Kept) {
        run("umount", &[self.path().as_os_str()]);
        fs::rename(copy.0, self.image()).unwrap();
        self.mount_image();
    }

    /// The name of its loop device.
    fn device(&self) -> String {
        let mut find = command("losetup");
        find.args(["--noheadings", "--output", "NAME", "--associated"]);
        let found = find.arg(self.image()).output().unwrap();
        let found = String::from_utf8(found.stdout).unwrap();
        let name = found.trim().strip_prefix("/dev/");
        name.expect("one loop device").to_owned()
    }
}

/// What was in the file at one moment.
#[derive(Debug)]
pub struct Kept(PathBuf);

#[derive(Debug)]
pub struct Stalled<'d>(&'d Disk);

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        run("fsfreeze", &["-u".as_ref(), self.0.path().as_os_str()]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A process that still has a file open there may keep it.
        let path = self.path();
        run("umount", &["--lazy".as_ref(), path.as_os_str()]);
    }
}

/// How many writes a device has done, or none while it does some.
fn written(device: &str) -> Option<u64> {
    let numbers = numbers_of(device);
    let (writes, in_flight) = (numbers[4], numbers[8]);
    (in_flight == 0).then_some(writes)
}

/// As the kernel's documentation of block devices lists them.
fn numbers_of(device: &str) -> Vec<u64> {
    let numbers = fs::read_to_string(format!("/sys/block/{device}/stat")).unwrap();
    let numbers = numbers.split_whitespace();
    numbers.map(|it| it.parse().unwrap()).collect()
}

fn set_open(directory: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o711)).unwrap();
}

/// Also where `PATH` has no directories of the system's own programs.
fn command(program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn run(program: &str, arguments: &[&OsStr]) {
    let status = command(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}
