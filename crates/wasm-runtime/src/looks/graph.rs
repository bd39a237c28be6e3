//! Which functions call which, and which of them have to look at the time as they begin.
//!
//! Calls through tables and by reference are not in the graph: a look comes before each. So are calls of imported
//! functions, which the host bounds.

use wasmparser::Operator;

/// More instructions than this are not executed without a look, but for what one function has beyond it by itself.
/// A processor needs less than a millisecond for them.
pub(super) const MOST: u64 = 1 << 20;

/// What an instruction counts for that works on a part of a memory or of a table, which can take long.
const LARGE: u64 = 1 << 10;

/// A function, as far as the graph knows it.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Where its instructions begin.
    pub(super) start: usize,
    /// How much its own instructions count for.
    own: u64,
    /// The functions of the module that it calls, without those that are imported.
    calls: Vec<u32>,
    /// Those of which one at most is called, as the function ends with it.
    last: Vec<u32>,
    /// The operator before was a call.
    has_called: bool,
}

impl Node {
    pub(super) fn new(start: usize) -> Self {
        Self {
            start,
            ..Self::default()
        }
    }

    /// Reads its next operator. `imported`: how many functions are.
    pub(super) fn read(&mut self, operator: &Operator<'_>, imported: u32) {
        let after_call = std::mem::take(&mut self.has_called);
        self.own += 1;
        match *operator {
            Operator::Call { function_index } => {
                if let Some(function) = function_index.checked_sub(imported) {
                    self.calls.push(function);
                    self.has_called = true;
                }
            }
            Operator::ReturnCall { function_index } => {
                self.last.extend(function_index.checked_sub(imported));
            }
            // A call that does not return: mostly a panic, of which functions have many.
            Operator::Unreachable if after_call => self.last.extend(self.calls.pop()),
            Operator::MemoryCopy { .. }
            | Operator::MemoryFill { .. }
            | Operator::MemoryInit { .. }
            | Operator::MemoryGrow { .. }
            | Operator::TableCopy { .. }
            | Operator::TableFill { .. }
            | Operator::TableInit { .. }
            | Operator::TableGrow { .. } => self.own += LARGE,
            _ => {}
        }
    }

    fn callee(&self, index: usize) -> Option<usize> {
        let others = index.checked_sub(self.calls.len());
        let callee = match others {
            None => self.calls.get(index),
            Some(index) => self.last.get(index),
        };
        callee.map(|callee| *callee as usize)
    }
}

/// Whether each function has to begin with a look.
pub(super) fn begin_with_look(nodes: &[Node]) -> Vec<bool> {
    let mut walk = Walk {
        nodes,
        seen: vec![Seen::default(); nodes.len()],
        open: Vec::new(),
        next: 1,
        costs: vec![0; nodes.len()],
        looks: vec![false; nodes.len()],
    };
    for root in 0..nodes.len() {
        walk.from(root);
    }
    walk.looks
}

/// What the walk knows of a function.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// When it was met, from 1; 0: it was not yet.
    number: u32,
    /// The earliest that can be reached from it and is still open.
    lowest: u32,
    is_open: bool,
}

/// Tarjan's walk: functions that can reach each other are found together, and after those that they call
/// ("Depth-first search and linear graph algorithms", 1972). Without recursion, as chains of calls can be long.
struct Walk<'a> {
    nodes: &'a [Node],
    seen: Vec<Seen>,
    open: Vec<usize>,
    next: u32,
    /// How many instructions a call of each is, at most, until it ends or looks.
    costs: Vec<u64>,
    looks: Vec<bool>,
}

impl Walk<'_> {
    fn from(&mut self, root: usize) {
        if self.number(root) != 0 {
            return;
        }
        // Functions on the way, and which of their callees comes next.
        let mut way = vec![(root, 0)];
        self.meet(root);
        while let Some((node, next)) = way.last_mut() {
            let node = *node;
            let callee = self.nodes.get(node).and_then(|of| of.callee(*next));
            *next += 1;
            match callee {
                Some(callee) if self.number(callee) == 0 => {
                    self.meet(callee);
                    way.push((callee, 0));
                }
                Some(callee) => {
                    let other = self.seen.get(callee).copied().unwrap_or_default();
                    if other.is_open {
                        self.reach(node, other.number);
                    }
                }
                None => {
                    way.pop();
                    let own = self.seen.get(node).copied().unwrap_or_default();
                    if let Some((caller, _)) = way.last() {
                        self.reach(*caller, own.lowest);
                    }
                    if own.lowest == own.number {
                        self.close(node);
                    }
                }
            }
        }
    }

    fn number(&self, node: usize) -> u32 {
        // One that does not exist is in no valid module.
        self.seen.get(node).map_or(u32::MAX, |seen| seen.number)
    }

    fn meet(&mut self, node: usize) {
        if let Some(seen) = self.seen.get_mut(node) {
            *seen = Seen {
                number: self.next,
                lowest: self.next,
                is_open: true,
            };
        }
        self.next += 1;
        self.open.push(node);
    }

    fn reach(&mut self, node: usize, number: u32) {
        if let Some(seen) = self.seen.get_mut(node) {
            seen.lowest = seen.lowest.min(number);
        }
    }

    /// All that can be reached from `first` and was not closed before can reach it, too.
    fn close(&mut self, first: usize) {
        let from = self.open.iter().rposition(|node| *node == first);
        let together = self.open.split_off(from.unwrap_or_default());
        let calls_itself = |node: &Node| {
            let mut callees = node.calls.iter().chain(&node.last);
            callees.any(|callee| *callee as usize == first)
        };
        let comes_round = together.len() > 1 || self.nodes.get(first).is_some_and(calls_itself);
        for node in together {
            if let Some(seen) = self.seen.get_mut(node) {
                seen.is_open = false;
            }
            let cost = if comes_round {
                u64::MAX
            } else {
                self.cost(node)
            };
            let looks = cost > MOST;
            if let (Some(place), Some(look)) = (self.costs.get_mut(node), self.looks.get_mut(node))
            {
                *place = if looks { 1 } else { cost };
                *look = looks;
            }
        }
    }

    fn cost(&self, node: usize) -> u64 {
        let Some(node) = self.nodes.get(node) else {
            return 0;
        };
        let of = |callee: &u32| {
            self.costs
                .get(*callee as usize)
                .copied()
                .unwrap_or_default()
        };
        let calls: u64 = node.calls.iter().map(of).sum();
        let last = node.last.iter().map(of).max().unwrap_or_default();
        node.own + calls + last
    }
}
