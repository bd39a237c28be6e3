//! What a project does with the lane of a request, before a route is chosen.

use outrider_lanes::{Request, Rules};
use outrider_plugin_formats::{LaneGroup, LaneRole};

use super::matching::Seen;
use crate::plan::{Plan, Project};

/// Does to the headers what the project's role does, and notes it.
pub(super) fn apply(plan: &Plan, project: &Project, seen: &mut Seen) {
    let uses = project.filter.iter().flat_map(|filter| &filter.lanes);
    for lane in uses {
        let groups = plan.filter.lane_groups.iter();
        let Some(group) = groups.into_iter().find(|group| group.name == lane.group) else {
            continue;
        };
        match &lane.role {
            LaneRole::Edge => edge(group, seen),
            LaneRole::Inbound => seen.notes.push(format!(
                "lanes `{}`: the request's lane is remembered by the ids of its trace",
                group.name
            )),
            LaneRole::Outbound if seen.headers.contains_key(&group.header) => {}
            LaneRole::Outbound => seen.notes.push(format!(
                "lanes `{}`: the request gets the lane that is remembered for its trace; here, the baseline `{}` (try \
                 --header {}:LANE)",
                group.name, group.baseline, group.header
            )),
            LaneRole::Stamp(own) => set(group, Some(own), seen),
        }
    }
}

fn edge(group: &LaneGroup, seen: &mut Seen) {
    // What cannot be compiled is refused by the module, too.
    let Ok(rules) = Rules::of(group) else {
        return;
    };
    let lane = {
        let request = Edge(seen, seen.full_path());
        rules.choose(&request).map(|rule| rule.lane.clone())
    };
    set(group, lane.as_deref(), seen);
}

fn set(group: &LaneGroup, lane: Option<&str>, seen: &mut Seen) {
    let before = seen.headers.remove(&group.header).is_some();
    let LaneGroup {
        name,
        header,
        baseline,
        ..
    } = group;
    let note = if let Some(lane) = lane.filter(|lane| lane != baseline) {
        seen.headers.insert(header.clone(), vec![lane.to_owned()]);
        format!("the request is in the lane `{lane}` (`{header}`)")
    } else if before {
        format!("the request is the baseline's, `{baseline}`, and the header `{header}` is removed")
    } else {
        format!("the request is the baseline's, `{baseline}`")
    };
    seen.notes.push(format!("lanes `{name}`: {note}"));
}

/// A request as entry rules see it, with its path and query.
struct Edge<'s>(&'s Seen, String);

impl Request for Edge<'_> {
    fn visit_header(&self, name: &str, visit: &mut dyn FnMut(&[u8])) {
        for value in self.0.headers.get(name).into_iter().flatten() {
            visit(value.as_bytes());
        }
    }

    fn path(&self) -> &[u8] {
        self.1.as_bytes()
    }
}
