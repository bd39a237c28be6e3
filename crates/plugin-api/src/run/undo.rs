//! Undoing the changes of a link that failed, where its stream goes on without it.

use super::ChainRun;
use crate::host::Host;
use crate::journal::{Journal, KeptJournal, OldHeader, OldPart};
use crate::phase::Direction;
use crate::view::{Window, replace_in_host, side};

impl ChainRun {
    /// Takes the journal of a handler that paused.
    pub(super) fn take_journal(&mut self, link: usize, direction: Direction) -> Option<Journal> {
        let found = self
            .journals
            .iter()
            .position(|kept| kept.link == link && kept.direction == direction)?;
        Some(self.journals.swap_remove(found).journal)
    }

    /// Keeps the journal of a handler that paused, or failed.
    pub(super) fn keep_journal(&mut self, link: usize, direction: Direction, journal: Journal) {
        if journal.is_used() {
            self.journals.push(KeptJournal {
                link,
                direction,
                journal,
            });
        }
    }

    /// Undoes what the handlers of a link changed that have not come to their end.
    pub(super) fn undo<H: Host>(&mut self, link: usize, host: &mut H) {
        for direction in [Direction::Request, Direction::Response] {
            if let Some(journal) = self.take_journal(link, direction) {
                self.undo_handler(link, direction, &journal, host);
            }
        }
    }

    fn undo_handler<H: Host>(
        &mut self,
        link: usize,
        direction: Direction,
        journal: &Journal,
        host: &mut H,
    ) {
        for old in journal.parts.iter().rev() {
            self.undo_part(link, old, host);
        }
        if let Some(direction) = journal.made_body {
            self.unmake_body(link, direction, host);
        }
        for old in journal.headers.iter().rev() {
            self.undo_header(old, host);
        }
        if let Some(before) = journal.changes {
            let side = side(direction);
            if let (Some(now), Some(before)) =
                (self.changes.lengths.get_mut(side), before.lengths.get(side))
            {
                *now = *before;
            }
            if direction == Direction::Response {
                self.changes.status = before.status;
            }
        }
        let restored = direction.headers();
        let has_length = |old: &OldHeader| old.map == restored && old.name == *b"content-length";
        // While the length was gone, another link changed the body, or gave the response a status without one: the length
        // has to be proven again.
        let is_resized = self.changes.resized.get(side(direction)) == Some(&true);
        let discards = self.flow(direction).discards;
        if journal.headers.iter().any(has_length)
            && (is_resized || discards)
            && let Some(length) = self.changes.lengths.get_mut(side(direction))
        {
            *length = true;
            if self.flow(direction).cursor >= self.states.len() {
                // No link is left whose turn would do it.
                self.settle_headers(direction, host);
            }
        }
        if journal.routed && self.request.cursor < self.states.len() && !self.response.headers_seen
        {
            host.clear_route_cache();
        }
    }

    /// The part of a body that a link was given last.
    fn part_of(&self, link: usize, direction: Direction) -> Option<Window> {
        let position = self.link_at(direction, link);
        let flow = self.flow(direction);
        flow.body_made_by(position)
            .or_else(|| {
                flow.chunk
                    .filter(|chunk| chunk.next == position)
                    .map(|chunk| chunk.window)
            })
            .or_else(|| flow.kept_by(position))
    }

    fn undo_part<H: Host>(&mut self, link: usize, old: &OldPart, host: &mut H) {
        let Some(window) = self.part_of(link, old.direction) else {
            return;
        };
        let start = (window.start + old.start).min(window.end);
        let part = Window {
            start,
            end: (start + old.replaced_by).min(window.end),
        };
        match &mut self.local {
            Some(local) if old.direction == Direction::Response => {
                if local.body.get(part.start..part.end).is_some() {
                    local
                        .body
                        .splice(part.start..part.end, old.bytes.iter().copied());
                }
            }
            _ => {
                if replace_in_host(host, old.direction, part, &old.bytes).is_err() {
                    return;
                }
            }
        }
        let restored = Window {
            start: window.start,
            end: window.end + old.bytes.len() - part.len(),
        };
        let position = self.link_at(old.direction, link);
        let flow = self.flow_mut(old.direction);
        match flow.chunk {
            Some(chunk) if chunk.window == window => flow.resized(restored),
            _ => flow.moved(position, window.end, restored.end),
        }
    }

    /// A message that came without a body has none again.
    fn unmake_body<H: Host>(&mut self, link: usize, direction: Direction, host: &mut H) {
        let position = self.link_at(direction, link);
        let Some(window) = self.flow(direction).body_made_by(position) else {
            return;
        };
        match &mut self.local {
            Some(local) if direction == Direction::Response => local.body.clear(),
            // What is left is an empty body, which is as good as none.
            _ => drop(replace_in_host(host, direction, window, b"")),
        }
        self.flow_mut(direction).unmade_body();
    }

    fn undo_header<H: Host>(&mut self, old: &OldHeader, host: &mut H) {
        let OldHeader { map, name, values } = old;
        match &mut self.local {
            Some(local) if *map == Direction::Response.headers() => {
                local.remove(name);
                for value in values {
                    local.add(name, value);
                }
            }
            _ => {
                let mut values = values.iter();
                match values.next() {
                    Some(first) => host.set_header(*map, name, first),
                    None => host.remove_header(*map, name),
                };
                for value in values {
                    host.add_header(*map, name, value);
                }
            }
        }
    }
}
