//! The configurations of a plugin version that are in use, and which of them VMs that are made ahead take in.
//!
//! A configuration lives while a stream has it, which may be long after another took its place. A VM that takes in
//! all of them takes the longer, the more of those there are. So only those count that streams may begin with: of
//! each place the newest; and the one that was that before, because the newest may yet be refused with its
//! generation, and is not on the workers yet. Others come with the stream that needs them.

use std::collections::BTreeMap;
use std::sync::Arc;

use outrider_plugin_api::ConfigPlace;

use crate::vm::Configuration;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Configurations {
    /// In the order in which they came, which is that of their numbers.
    known: Vec<Known>,
    /// By place, the newest last.
    places: BTreeMap<Arc<str>, Vec<Entry>>,
    /// How often one was put into a place.
    turns: u64,
}

/// A configuration in a place.
#[derive(Debug, Clone, Copy)]
struct Entry {
    generation: u64,
    /// When it was put there, in a count of all.
    turn: u64,
    id: u32,
}

#[derive(Debug)]
struct Known {
    configuration: Configuration,
    /// Whether it takes long to take in.
    is_long: bool,
    places: Vec<Arc<str>>,
    /// In how many places it counts, and one more where it takes nobody's place.
    counts: usize,
}

impl Configurations {
    /// One has come, whose number is higher than all before.
    pub(super) fn add(
        &mut self,
        configuration: &Configuration,
        is_long: bool,
        place: Option<&ConfigPlace>,
    ) {
        self.known.push(Known {
            configuration: configuration.clone(),
            is_long,
            places: Vec::new(),
            counts: 0,
        });
        self.put(configuration.id, place);
    }

    /// One is the newest of another place, too.
    pub(super) fn put(&mut self, id: u32, place: Option<&ConfigPlace>) {
        let Some(known) = self.of(id) else { return };
        let Some(ConfigPlace { name, generation }) = place else {
            known.counts += 1;
            return;
        };
        if !known.places.contains(name) {
            known.places.push(Arc::clone(name));
        }
        self.turns += 1;
        let entry = Entry {
            generation: *generation,
            turn: self.turns,
            id,
        };
        self.change(name, |list| {
            list.retain(|other| other.id != id);
            let at = list.partition_point(|other| other.generation <= entry.generation);
            list.insert(at, entry);
        });
    }

    /// One is over.
    pub(super) fn remove(&mut self, id: u32) {
        let Some(known) = self.of(id) else { return };
        for name in std::mem::take(&mut known.places) {
            self.change(&name, |list| list.retain(|other| other.id != id));
            if self.places.get(&name).is_some_and(Vec::is_empty) {
                self.places.remove(&name);
            }
        }
        self.known.retain(|known| known.configuration.id != id);
    }

    /// Changes what a place has had, and with it what counts.
    fn change(&mut self, name: &Arc<str>, change: impl FnOnce(&mut Vec<Entry>)) {
        let list = self.places.entry(Arc::clone(name)).or_default();
        let counted = that_count(list);
        change(list);
        let count = that_count(list);
        for id in count.into_iter().flatten() {
            if let Some(known) = self.of(id) {
                known.counts += 1;
            }
        }
        for id in counted.into_iter().flatten() {
            if let Some(known) = self.of(id) {
                known.counts -= 1;
            }
        }
    }

    fn at(&self, id: u32) -> Option<usize> {
        self.known
            .binary_search_by_key(&id, |known| known.configuration.id)
            .ok()
    }

    fn of(&mut self, id: u32) -> Option<&mut Known> {
        let at = self.at(id)?;
        self.known.get_mut(at)
    }

    fn get(&self, id: u32) -> Option<&Known> {
        self.known.get(self.at(id)?)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whether it is in use.
    pub(super) fn contains(&self, id: u32) -> bool {
        self.get(id).is_some()
    }

    /// Whether VMs that are made ahead take it in.
    pub(super) fn counts(&self, id: u32) -> bool {
        self.get(id).is_some_and(|known| known.counts > 0)
    }

    /// Whether they do, and it takes them long.
    pub(super) fn is_long(&self, id: u32) -> bool {
        self.counts(id) && self.get(id).is_some_and(|known| known.is_long)
    }

    /// What VMs that are made ahead take in, in the order in which they came.
    pub(super) fn that_count(&self) -> impl Iterator<Item = &Configuration> {
        self.known
            .iter()
            .filter(|known| known.counts > 0)
            .map(|known| &known.configuration)
    }
}

/// Which of a place count: the newest, and the one before, unless that came later, for an older generation.
fn that_count(list: &[Entry]) -> [Option<u32>; 2] {
    let mut newest_first = list.iter().rev();
    let newest = newest_first.next();
    let before = newest_first
        .next()
        .filter(|before| newest.is_some_and(|newest| before.turn < newest.turn));
    [newest, before].map(|entry| Some(entry?.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str, generation: u64) -> ConfigPlace {
        ConfigPlace {
            name: name.into(),
            generation,
        }
    }

    #[derive(Default)]
    struct Test(Configurations);

    impl Test {
        fn add(&mut self, id: u32, name: &str, generation: u64) {
            let text = Arc::from(&b""[..]);
            let configuration = Configuration { id, text };
            let place = (!name.is_empty()).then(|| place(name, generation));
            self.0.add(&configuration, false, place.as_ref());
        }

        fn counting(&self) -> Vec<u32> {
            self.0.that_count().map(|known| known.id).collect()
        }
    }

    #[test]
    fn of_each_place_the_newest_and_the_one_before_count() {
        let mut test = Test::default();
        for (id, name) in [(1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, ""), (6, "a")] {
            test.add(id, name, 1);
        }
        assert_eq!(test.counting(), [2, 4, 5, 6]);
        assert!(test.0.contains(1) && !test.0.counts(1) && test.0.counts(6));
        // The newest is refused with its generation: the one before was there all the time.
        test.0.remove(6);
        assert_eq!(test.counting(), [2, 3, 4, 5]);
        for id in [1, 2, 3, 4, 5] {
            test.0.remove(id);
        }
        assert!(test.0.is_empty() && test.0.places.is_empty());
    }

    #[test]
    fn one_that_has_several_places_counts_as_long_as_it_does_in_one() {
        let mut test = Test::default();
        test.add(1, "a", 1);
        test.0.put(1, Some(&place("b", 1)));
        for id in 2..5 {
            test.add(id, "a", 1);
        }
        assert_eq!(test.counting(), [1, 3, 4]);
        for id in 5..7 {
            test.add(id, "b", 1);
        }
        assert_eq!(test.counting(), [3, 4, 5, 6]);
        test.0.put(2, Some(&place("b", 1)));
        assert_eq!(test.counting(), [2, 3, 4, 6], "it came back");
        test.0.put(1, None);
        assert_eq!(test.counting(), [1, 2, 3, 4, 6], "it takes nobody's place");
        test.0.remove(1);
        assert_eq!(test.counting(), [2, 3, 4, 6]);
    }

    #[test]
    fn what_comes_for_an_old_generation_takes_no_newer_ones_place() {
        let mut test = Test::default();
        for (id, generation) in [(1, 1), (2, 2), (3, 3), (4, 1), (5, 2)] {
            test.add(id, "a", generation);
        }
        assert_eq!(test.counting(), [3]);
        test.add(6, "a", 3);
        assert_eq!(test.counting(), [3, 6]);
    }
}
