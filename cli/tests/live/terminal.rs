//! What a run draws on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use portcullis_live_tests::wait_until;
use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::af_xdp::net;
use crate::support::TIMEOUT;
use crate::watching::exchange_datagrams;

/// Lines and columns of the terminal.
const SIZE: (NonZeroU16, NonZeroU16) = (NonZeroU16::new(24).unwrap(), NonZeroU16::new(80).unwrap());

/// A pseudoterminal whose screen is read as people see it.
struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Returns the terminal and the file that programs open as theirs.
    fn open() -> (Terminal, OwnedFd) {
        let keyboard = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::unlockpt(&keyboard).unwrap();
        let name = rustix::pty::ptsname(&keyboard, Vec::new()).unwrap();
        let program = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let size = Winsize { ws_row: SIZE.0.get(), ws_col: SIZE.1.get(), ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&program, size).unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(SIZE.0, SIZE.1, 0)));
        let (keyboard, drawn) = (File::from(keyboard), screen.clone());
        let mut output = keyboard.try_clone().unwrap();
        // Reading fails once no program has the terminal open.
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                drawn.lock().unwrap().process(&bytes[..count]);
            }
        });
        (Terminal { keyboard, screen, reader: Some(reader) }, program)
    }

    /// Returns the screen's lines, without spaces at their ends.
    fn text(&self) -> String {
        let screen = self.screen.lock().unwrap();
        screen.screen().rows(0, SIZE.1.get()).map(|row| row.trim_end().to_owned() + "\n").collect()
    }

    /// Returns the screen once no program has the terminal open.
    fn last_text(&mut self) -> String {
        self.reader.take().unwrap().join().unwrap();
        self.text()
    }
}

/// Ends the program if a test fails.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_statistics_table_is_redrawn_and_leaves_no_line_behind() {
    let Some(net) = net(1) else { return };
    let (mut terminal, program) = Terminal::open();
    let mut command = net.right.command(env!("CARGO_BIN_EXE_portcullis"));
    let name = net.veth.right.name();
    command.args(["run", "mac_swap", "--device", "cpu", "--af-xdp", name, "--only", "udp/9", "--stats", "100ms"]);
    command.stdin(Stdio::null()).stdout(program.try_clone().unwrap()).stderr(program);
    let mut program = Program(command.spawn().unwrap());
    // The command holds the terminal open.
    drop(command);
    let has_row =
        |text: &str, name: &str, end: &str| text.lines().any(|line| line.starts_with(name) && line.ends_with(end));
    wait_until("the table is drawn", TIMEOUT, || has_row(&terminal.text(), "tx ", " 0"));
    let table = terminal.text();
    assert!(table.contains("packets in") && table.contains("mac_swap, on cpu, 0:00:"), "{table}");
    exchange_datagrams(&net, 20);
    wait_until("the table is redrawn", TIMEOUT, || has_row(&terminal.text(), "tx ", " 20"));
    assert_eq!(terminal.text().matches("packets in").count(), 1, "{}", terminal.text());
    // The terminal shows `^C` where the cursor is.
    terminal.keyboard.write_all(b"\x03").unwrap();
    wait_until("the key is shown", TIMEOUT, || terminal.text().contains("^C"));
    rustix::process::kill_process(rustix::process::Pid::from_child(&program.0), rustix::process::Signal::INT).unwrap();
    assert!(program.0.wait().unwrap().success());
    let left = terminal.last_text();
    for part in ["packets in", ", on cpu, 0:00:", "a second", "in all"] {
        assert!(!left.contains(part), "{part}: {left}");
    }
    assert!(left.contains("all accounted for"), "{left}");
}
