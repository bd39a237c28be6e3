//! Events for a VM that wait until it runs next, from any thread.
//!
//! Their bytes count in the plugin's memory account. A response that does not fit is a failure of its callout; a stream
//! whose parts do not fit fails, and nothing more of it is kept.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outrider_plugin_api::{
    Background, CalloutFailure, CalloutResponse, ENTRY_COST, HttpStreamEvent, OwnedHeaders,
    OwnedHttpStreamEvent, Reservation, own_headers,
};

/// What came of a callout, with bytes of its own: headers and body.
pub(crate) type Outcome = Result<(OwnedHeaders, Vec<u8>), CalloutFailure>;

/// The same of what the proxy tells.
pub(crate) fn own(outcome: Result<CalloutResponse<'_>, CalloutFailure>) -> Outcome {
    outcome.map(|response| (own_headers(response.headers), response.body.concat()))
}

/// One thing to be told.
#[derive(Debug)]
pub(crate) enum Mail {
    /// There is something in a queue.
    Queue {
        /// The root that registered it.
        root: u32,
        token: u32,
    },
    /// A callout of a root's is over.
    Callout { token: u32, outcome: Outcome },
    /// Something has come of a root's gRPC exchange.
    Grpc {
        token: u32,
        event: OwnedHttpStreamEvent,
    },
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    has_mail: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    mail: VecDeque<(Mail, Option<Reservation>)>,
    /// gRPC exchanges of which nothing more is kept, because their failure waits.
    refused: Vec<u32>,
}

/// With more than this waiting, no notice of a queue is added: who is told of a queue once can empty it.
const MOST_MAIL: usize = 1024;

impl Mailbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, waiting: &mut Waiting, one: Mail, memory: Option<Reservation>) {
        waiting.mail.push_back((one, memory));
        self.has_mail.store(true, Ordering::Release);
    }

    /// There is something in a queue.
    pub(crate) fn put_notice(&self, root: u32, token: u32) {
        let mut waiting = self.waiting();
        if waiting.mail.len() < MOST_MAIL {
            self.add(&mut waiting, Mail::Queue { root, token }, None);
        }
    }

    /// A callout of a root's is over. There are only as many as the VM has begun.
    pub(crate) fn put_outcome(
        &self,
        token: u32,
        outcome: Result<CalloutResponse<'_>, CalloutFailure>,
        background: &dyn Background,
    ) {
        let cost = outcome.map_or(0, |response| response.memory_cost());
        let (outcome, memory) = match background.reserve(ENTRY_COST + cost) {
            Ok(memory) => (own(outcome), memory),
            Err(_) if cost > 0 => (Err(CalloutFailure::TooLarge), None),
            Err(_) => (own(outcome), None),
        };
        self.add(
            &mut self.waiting(),
            Mail::Callout { token, outcome },
            memory,
        );
    }

    /// Something has come of a root's gRPC exchange.
    pub(crate) fn put_event(
        &self,
        token: u32,
        event: &HttpStreamEvent<'_>,
        background: &dyn Background,
    ) {
        let mut waiting = self.waiting();
        if waiting.refused.contains(&token) {
            return;
        }
        let cost = event.memory_cost();
        let (event, memory) = match background.reserve(ENTRY_COST + cost) {
            Ok(memory) => (OwnedHttpStreamEvent::new(event), memory),
            Err(_) if cost > 0 => {
                waiting.refused.push(token);
                (OwnedHttpStreamEvent::Failed(CalloutFailure::TooLarge), None)
            }
            // The end of an exchange is never refused.
            Err(_) => (OwnedHttpStreamEvent::new(event), None),
        };
        self.add(&mut waiting, Mail::Grpc { token, event }, memory);
    }

    /// Whether there is something to take.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::Acquire)
    }

    /// Takes what came first.
    pub(crate) fn take(&self) -> Option<Mail> {
        let mut waiting = self.waiting();
        let first = waiting.mail.pop_front();
        self.has_mail
            .store(!waiting.mail.is_empty(), Ordering::Release);
        let (mail, _memory) = first?;
        if let Mail::Grpc {
            token,
            event: OwnedHttpStreamEvent::Failed(_),
        } = &mail
        {
            // The guest forgets the exchange now, and with it the stream is reset.
            waiting.refused.retain(|refused| refused != token);
        }
        Some(mail)
    }
}
