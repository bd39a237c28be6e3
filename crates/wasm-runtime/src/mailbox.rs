//! What a VM is to be told when it runs next, by whichever thread knows of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outrider_plugin_api::{
    CalloutFailure, CalloutResponse, HttpStreamEvent, OwnedHeaders, OwnedHttpStreamEvent,
    own_headers,
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
    mail: Mutex<VecDeque<Mail>>,
}

/// With more than this waiting, no notice of a queue is added: who is told of a queue once can empty it.
const MOST_MAIL: usize = 1024;

impl Mailbox {
    fn mail(&self) -> MutexGuard<'_, VecDeque<Mail>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, mail: &mut VecDeque<Mail>, one: Mail) {
        mail.push_back(one);
        self.has_mail.store(true, Ordering::Release);
    }

    /// There is something in a queue.
    pub(crate) fn put_notice(&self, root: u32, token: u32) {
        let mut mail = self.mail();
        if mail.len() < MOST_MAIL {
            self.add(&mut mail, Mail::Queue { root, token });
        }
    }

    /// A callout of a root's is over. There are only as many as the VM has begun.
    pub(crate) fn put_outcome(
        &self,
        token: u32,
        outcome: Result<CalloutResponse<'_>, CalloutFailure>,
    ) {
        let outcome = own(outcome);
        self.add(&mut self.mail(), Mail::Callout { token, outcome });
    }

    /// Something has come of a root's gRPC exchange.
    pub(crate) fn put_event(&self, token: u32, event: &HttpStreamEvent<'_>) {
        let event = OwnedHttpStreamEvent::new(event);
        self.add(&mut self.mail(), Mail::Grpc { token, event });
    }

    /// Whether there is something to take.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::Acquire)
    }

    /// Takes what came first.
    pub(crate) fn take(&self) -> Option<Mail> {
        let mut mail = self.mail();
        let first = mail.pop_front();
        self.has_mail.store(!mail.is_empty(), Ordering::Release);
        first
    }
}
