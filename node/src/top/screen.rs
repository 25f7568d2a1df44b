//! The terminal while a picture is drawn on it: another screen, no cursor, keys one by one. However the picture ends, the
//! terminal is as it was.

use std::io::{self, Write};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use rustix::io::Errno;
use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Shows the other screen and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// The opposite.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// How often it is looked whether a key was typed: quicker than people notice.
const LOOK: Duration = Duration::from_millis(100);
/// A terminal that does not say how large it is.
const USUAL: (usize, usize) = (80, 24);

/// A terminal that is drawn on. Dropping it, or a panic, gives the terminal back.
pub(super) struct Screen(Arc<Terminal>);

struct Terminal {
    /// How keys came before; `None` where standard input is no terminal.
    before: Option<Termios>,
    is_drawn_on: AtomicBool,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn open() -> anyhow::Result<Self> {
        let before = termios::tcgetattr(io::stdin()).ok();
        let terminal = Arc::new(Terminal { before, is_drawn_on: AtomicBool::new(true) });
        // From here on it is given back whatever happens.
        let screen = Self(Arc::clone(&terminal));
        let earlier = panic::take_hook();
        panic::set_hook(Box::new(move |told| {
            terminal.give_back();
            earlier(told);
        }));
        if let Some(before) = &screen.0.before {
            let mut keys = before.clone();
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            // A read gives what has been typed, and never waits.
            keys.special_codes[SpecialCodeIndex::VMIN] = 0;
            keys.special_codes[SpecialCodeIndex::VTIME] = 0;
            termios::tcsetattr(io::stdin(), OptionalActions::Now, &keys)
                .context("cannot read single keys from the terminal")?;
        }
        write(ENTER)?;
        Ok(screen)
    }

    /// The keys that are typed on it. Must be called inside a tokio runtime.
    pub(super) fn keys(&self) -> Keys {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Keys { looks, are_typed: self.0.before.is_some() }
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = termios::tcgetwinsize(io::stdout()).ok();
        let known = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        known.map_or(USUAL, |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Draws these lines over what was there.
    pub(super) fn draw(&self, lines: &[String]) -> anyhow::Result<()> {
        // Each line clears what is right of it, the last one also what is below.
        write(&format!("\x1b[H{}\x1b[J", lines.join("\x1b[K\r\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl Terminal {
    fn give_back(&self) {
        if !self.is_drawn_on.swap(false, Ordering::SeqCst) {
            return;
        }
        // Where that fails there is no terminal any more.
        let _ = write(LEAVE);
        if let Some(before) = &self.before {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot draw on the terminal")
}

/// Keys as they are typed.
pub(super) struct Keys {
    looks: Interval,
    /// Whether standard input is a terminal that a [`Screen`] has taken, so that a read never waits.
    are_typed: bool,
}

impl Keys {
    /// Waits until the user has seen enough. Can be dropped and called again.
    pub(super) async fn quit(&mut self) {
        while self.are_typed {
            self.looks.tick().await;
            let mut typed = [0; 64];
            match rustix::io::read(io::stdin(), &mut typed) {
                Ok(count) if typed[..count].iter().any(|key| matches!(key, b'q' | b'Q')) => return,
                Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
                // A signal can still end it.
                Err(_) => self.are_typed = false,
            }
        }
        std::future::pending().await
    }
}
