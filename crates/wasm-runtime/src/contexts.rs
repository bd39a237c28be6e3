//! The contexts of one VM: a root for each configuration, and one for each stream.
//!
//! Guests name contexts by numbers that are never used twice in a VM; the host finds a stream's own by its
//! place, and looks others up by their number only when a guest asks for them.

use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{Direction, HeaderMap, Reply, WakeId};
use smallvec::SmallVec;

use crate::grpc::Incoming;

/// A root context.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) id: u32,
    /// Of the plugin's configurations, the one that it stands for.
    pub(crate) configuration: u32,
    /// What `proxy_on_configure` may read.
    pub(crate) text: Arc<[u8]>,
    /// What became of its last callout: a status and a text.
    pub(crate) outcome: (u32, String),
    /// How often `proxy_on_tick` is wanted, in milliseconds; 0: not at all.
    pub(crate) tick: u32,
    /// When it is called next, by the guest's clock.
    pub(crate) next_tick: Duration,
}

/// A callout that is under way.
#[derive(Debug)]
pub(crate) struct Callout {
    pub(crate) token: u32,
    pub(crate) wake: WakeId,
    /// What has come, where it is one of gRPC.
    pub(crate) grpc: Option<Box<Incoming>>,
    /// The root whose callbacks are called.
    pub(crate) root: u32,
}

/// Which of the four maps of its stream a guest may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Maps(u8);

impl Maps {
    /// All of them.
    pub(crate) const ALL: Self = Self(
        Self::bit(HeaderMap::RequestHeaders)
            | Self::bit(HeaderMap::RequestTrailers)
            | Self::bit(HeaderMap::ResponseHeaders)
            | Self::bit(HeaderMap::ResponseTrailers),
    );

    const fn bit(map: HeaderMap) -> u8 {
        1 << map as u8
    }

    pub(crate) fn open(&mut self, map: HeaderMap) {
        self.0 |= Self::bit(map);
    }

    pub(crate) fn close(&mut self, map: HeaderMap) {
        self.0 &= !Self::bit(map);
    }

    #[inline]
    pub(crate) fn has(self, map: HeaderMap) -> bool {
        self.0 & Self::bit(map) != 0
    }
}

/// What one direction of a stream waits for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wait {
    /// A callback paused it.
    pub(crate) paused: bool,
    /// The guest said that it goes on.
    pub(crate) go_on: bool,
}

/// A stream's context.
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) id: u32,
    /// Its root's number.
    pub(crate) root: u32,
    pub(crate) maps: Maps,
    pub(crate) request: Wait,
    pub(crate) response: Wait,
    /// What the guest replied while another context was its current one, or with no stream at hand.
    pub(crate) reply: Option<Box<Reply>>,
    pub(crate) callouts: SmallVec<[Callout; 1]>,
    /// The timer with which a pause is looked at that nothing else ends.
    pub(crate) watch: Option<u64>,
    /// How often that timer was due.
    pub(crate) looks: u32,
    /// So many bytes of the body of each direction (request, response) the guest has seen and does not see
    /// again, as it asked for (`StopIterationAndWatermark`), though they are held back.
    pub(crate) hidden: [usize; 2],
    /// What the guest set with `proxy_set_property`.
    pub(crate) properties: Vec<(Vec<u8>, Vec<u8>)>,
    /// A request header was changed, and the route was not chosen anew since.
    pub(crate) route_is_stale: bool,
    /// The stream's last callback is going on, or is over.
    pub(crate) is_over: bool,
}

impl Context {
    /// Whether it waits for nothing, and has done nothing that anything follows from.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        let waits = |wait: &Wait| wait.paused | wait.go_on;
        !(waits(&self.request) | waits(&self.response) | self.route_is_stale)
            && self.hidden == [0, 0]
            && self.reply.is_none()
    }

    pub(crate) fn wait(&mut self, direction: Direction) -> &mut Wait {
        match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }

    /// How many bytes of a body that is there the guest does not see.
    pub(crate) fn hidden(&mut self, direction: Direction) -> &mut usize {
        let [request, response] = &mut self.hidden;
        match direction {
            Direction::Request => request,
            Direction::Response => response,
        }
    }
}

/// Of which kind of callout a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum TokenKind {
    HttpCall,
    GrpcCall,
    GrpcStream,
}

/// So many tokens of a kind there are before the first one is used again.
const MOST_TOKENS: u32 = (u32::MAX >> 2) - 1;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    last_id: u32,
    pub(crate) roots: Vec<Root>,
    streams: Vec<Option<Context>>,
    free: Vec<usize>,
    /// How many tokens there were of each kind.
    tokens: [u32; 3],
    /// Callouts of roots, which no stream has.
    pub(crate) callouts: Vec<Callout>,
    /// Whether a root wants ticks.
    ticks: bool,
}

impl Contexts {
    fn next_id(&mut self) -> u32 {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            let id = self.last_id;
            // Only after four thousand million streams can a number be in use.
            if id != 0 && (id > self.streams.len() as u32 + 64 || !self.is_used(id)) {
                return id;
            }
        }
    }

    fn is_used(&self, id: u32) -> bool {
        self.roots.iter().any(|root| root.id == id) || self.find(id).is_some()
    }

    pub(crate) fn add_root(&mut self, configuration: u32, text: Arc<[u8]>) -> u32 {
        let id = self.next_id();
        self.roots.push(Root {
            id,
            configuration,
            text,
            outcome: (0, String::new()),
            tick: 0,
            next_tick: Duration::ZERO,
        });
        id
    }

    pub(crate) fn root(&mut self, id: u32) -> Option<&mut Root> {
        self.roots.iter_mut().find(|root| root.id == id)
    }

    pub(crate) fn root_of(&self, configuration: u32) -> Option<u32> {
        self.roots
            .iter()
            .find(|root| root.configuration == configuration)
            .map(|root| root.id)
    }

    /// How often a root wants ticks from now on, in milliseconds, and when next. Answers whether there is such a root.
    pub(crate) fn set_tick(&mut self, id: u32, period: u32, next: Duration) -> bool {
        let Some(root) = self.root(id) else {
            return false;
        };
        root.tick = period;
        root.next_tick = next;
        self.note_ticks();
        true
    }

    /// Whether a root wants ticks.
    #[inline]
    pub(crate) fn has_ticks(&self) -> bool {
        self.ticks
    }

    fn note_ticks(&mut self) {
        self.ticks = self.roots.iter().any(|root| root.tick > 0);
    }

    /// Takes the exchanges out that a root has under way without a stream, but for those that are only checked.
    pub(crate) fn take_exchanges(&mut self, root: u32) -> Vec<Callout> {
        let is_it = |callout: &mut Callout| {
            let grpc = callout.grpc.as_ref();
            callout.root == root && grpc.is_some_and(|grpc| grpc.handle.is_some())
        };
        self.callouts.extract_if(.., is_it).collect()
    }

    pub(crate) fn remove_root(&mut self, id: u32) {
        self.roots.retain(|root| root.id != id);
        self.note_ticks();
        self.callouts.retain(|callout| callout.root != id);
    }

    /// A stream begins; answers the place of its context, and its number.
    pub(crate) fn add(&mut self, root: u32) -> (usize, u32) {
        let id = self.next_id();
        let context = Context {
            id,
            root,
            ..Context::default()
        };
        let place = if let Some(place) = self.free.pop() {
            if let Some(slot) = self.streams.get_mut(place) {
                *slot = Some(context);
            }
            place
        } else {
            self.streams.push(Some(context));
            self.streams.len() - 1
        };
        (place, id)
    }

    #[inline]
    pub(crate) fn at(&self, place: usize) -> Option<&Context> {
        self.streams.get(place)?.as_ref()
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut Context> {
        self.streams.get_mut(place)?.as_mut()
    }

    /// Whether nothing that a stream has started is under way.
    #[inline]
    pub(crate) fn has_no_callouts(&self, place: usize) -> bool {
        self.at(place)
            .is_some_and(|context| context.callouts.is_empty())
    }

    /// The place of the stream's context of a number.
    pub(crate) fn find(&self, id: u32) -> Option<usize> {
        self.streams
            .iter()
            .position(|one| one.as_ref().is_some_and(|context| context.id == id))
    }

    /// How many streams there are.
    pub(crate) fn streams(&self) -> usize {
        self.streams.len() - self.free.len()
    }

    /// A stream's context is not needed any more.
    pub(crate) fn remove(&mut self, place: usize) {
        if let Some(slot) = self.streams.get_mut(place)
            && slot.take().is_some()
        {
            self.free.push(place);
        }
    }

    /// A callout of the stream at a place, or, with none, of a root.
    pub(crate) fn callout(&mut self, place: Option<usize>, wake: WakeId) -> Option<&mut Callout> {
        let callouts = match place {
            Some(place) => self.at_mut(place)?.callouts.as_mut_slice(),
            None => self.callouts.as_mut_slice(),
        };
        callouts.iter_mut().find(|one| one.wake == wake)
    }

    /// The same, taken out: it is over.
    pub(crate) fn take_callout(&mut self, place: Option<usize>, wake: WakeId) -> Option<Callout> {
        let is_it = |one: &Callout| one.wake == wake;
        let Some(place) = place else {
            let found = self.callouts.iter().position(is_it)?;
            return Some(self.callouts.swap_remove(found));
        };
        let callouts = &mut self.at_mut(place)?.callouts;
        let found = callouts.iter().position(is_it)?;
        Some(callouts.swap_remove(found))
    }

    /// A token for a callout. Its last two bits say of which kind, as in Envoy.
    pub(crate) fn token(&mut self, kind: TokenKind) -> u32 {
        let count = match kind {
            TokenKind::HttpCall => &mut self.tokens[0],
            TokenKind::GrpcCall => &mut self.tokens[1],
            TokenKind::GrpcStream => &mut self.tokens[2],
        };
        // None of them is 0.
        *count = (*count % MOST_TOKENS) + 1;
        *count * 4 + kind as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_used_twice_and_places_are() {
        let mut contexts = Contexts::default();
        let root = contexts.add_root(9, Arc::from(&b"{}"[..]));
        assert_eq!((root, contexts.root_of(9)), (1, Some(1)));
        let (place, id) = contexts.add(root);
        assert_eq!((place, id), (0, 2));
        contexts
            .at_mut(place)
            .unwrap()
            .maps
            .open(HeaderMap::RequestHeaders);
        contexts.remove(place);
        contexts.remove(place);
        assert_eq!(contexts.streams(), 0);
        let (place, id) = contexts.add(root);
        assert_eq!((place, id), (0, 3));
        assert_eq!(contexts.at(place).unwrap().maps, Maps::default());
        assert_eq!((contexts.find(3), contexts.find(2)), (Some(0), None));
    }

    #[test]
    fn numbers_go_on_after_the_largest() {
        let mut contexts = Contexts {
            last_id: u32::MAX - 1,
            ..Contexts::default()
        };
        let (_, id) = contexts.add(0);
        assert_eq!(id, u32::MAX);
        let (_, id) = contexts.add(0);
        assert_eq!(id, 1);
        contexts.last_id = 0;
        let (_, id) = contexts.add(0);
        assert_eq!(id, 2, "1 is in use");
    }

    #[test]
    fn tokens_are_those_of_envoy() {
        let mut contexts = Contexts::default();
        let kinds = [
            TokenKind::HttpCall,
            TokenKind::GrpcCall,
            TokenKind::GrpcStream,
            TokenKind::HttpCall,
        ];
        assert_eq!(kinds.map(|kind| contexts.token(kind)), [4, 5, 6, 8]);
        contexts.tokens = [MOST_TOKENS; 3];
        assert_eq!(contexts.token(TokenKind::GrpcStream), 6);
    }
}
