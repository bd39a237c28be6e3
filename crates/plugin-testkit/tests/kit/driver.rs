//! The kit itself, held by plugins in Rust: what the driver does with verdicts and effects, in every
//! way in which messages can arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::scripted::{Build, Notes, body, chain, chain_with};
use outrider_plugin_api::{
    Attribute, BodyMode, CalloutFailure, CalloutRequest, Cause, Chain, Decision, Direction, Fault,
    HeaderMap, Interest, LogLevel, MetadataSource, Pause, Phase, Reply, Scalar, Slot, Wake,
};
use outrider_plugin_testkit::{
    Arrival, Headers, Message, MetricTable, Outcome, ScriptedAnswer, ScriptedHost,
    ScriptedResponse, play,
};

fn get(path: &str) -> Message {
    Message {
        headers: Headers::new()
            .with(":method", "GET")
            .with(":path", path)
            .with(":authority", "shop"),
        ..Message::default()
    }
}

fn post(chunks: &[&str]) -> Message {
    let mut message = get("/");
    message.headers.set(b":method", b"POST");
    message.chunks = chunks
        .iter()
        .map(|chunk| chunk.as_bytes().to_vec())
        .collect();
    message
}

fn ok(chunks: &[&str]) -> Message {
    Message {
        headers: Headers::new().with(":status", "200"),
        chunks: chunks
            .iter()
            .map(|chunk| chunk.as_bytes().to_vec())
            .collect(),
        trailers: None,
    }
}

/// Plays an exchange in every way; the check must hold in each.
fn in_every_way(
    chain: &Arc<Chain>,
    request: &Message,
    answer: &Message,
    host: impl Fn() -> ScriptedHost,
    check: impl Fn(&Outcome),
) {
    for arrival in Arrival::ALL {
        let outcome = play(chain.clone(), request, answer, arrival, host());
        assert_eq!(outcome.problems, Vec::<String>::new(), "{arrival:?}");
        check(&outcome);
    }
}

fn upstream_body(outcome: &Outcome) -> String {
    let request = outcome.upstream_request.as_ref().unwrap();
    assert!(request.complete);
    String::from_utf8(request.body.clone()).unwrap()
}

fn response_body(outcome: &Outcome) -> String {
    let response = outcome.response.as_ref().unwrap();
    assert!(response.complete);
    String::from_utf8(response.body.clone()).unwrap()
}

fn status(outcome: &Outcome) -> String {
    outcome.response.as_ref().unwrap().headers.text(":status")
}

const BOTH_WHOLE: Interest = Interest {
    request_headers: false,
    request_body: BodyMode::Whole,
    request_trailers: false,
    response_headers: false,
    response_body: BodyMode::Whole,
    response_trailers: false,
    log: false,
};

fn shouting(name: &'static str) -> Build {
    Build::new(name, BOTH_WHOLE, |_, call, stream| {
        let direction = call.phase.direction();
        let loud = format!("{}!", body(stream, direction).to_uppercase());
        stream.set_body(direction, loud.as_bytes()).unwrap();
        Ok(Decision::Continue)
    })
}

#[test]
fn an_empty_chain_lets_everything_pass() {
    let mut request = post(&["one", "two"]);
    request.trailers = Some(Headers::new().with("x-t", "1"));
    in_every_way(
        &chain(vec![]),
        &request,
        &ok(&["three"]),
        ScriptedHost::default,
        |outcome| {
            assert_eq!(upstream_body(outcome), "onetwo");
            let trailers = outcome.upstream_request.as_ref().unwrap().trailers.clone();
            assert_eq!(trailers.unwrap().text("x-t"), "1");
            assert_eq!(response_body(outcome), "three");
            assert_eq!(outcome.details, "via_upstream");
        },
    );
}

#[test]
fn whole_bodies_are_changed_with_their_length() {
    let mut request = post(&["one", "two"]);
    request.headers.set(b"content-length", b"6");
    let chain = chain(vec![shouting("first"), shouting("second")]);
    in_every_way(
        &chain,
        &request,
        &ok(&["a", "b", "c"]),
        ScriptedHost::default,
        |outcome| {
            assert_eq!(upstream_body(outcome), "ONETWO!!");
            let headers = &outcome.upstream_request.as_ref().unwrap().headers;
            assert_eq!(headers.text("content-length"), "8");
            assert_eq!(response_body(outcome), "ABC!!");
        },
    );
}

#[test]
fn a_whole_body_and_trailers() {
    let mut request = post(&["one", "two"]);
    request.trailers = Some(Headers::new().with("x-t", "1"));
    let notes = Notes::default();
    let seen = notes.clone();
    let interest = Interest {
        request_trailers: true,
        ..BOTH_WHOLE
    };
    let plugin = Build::new("trailing", interest, move |_, call, stream| {
        match call.phase {
            Phase::RequestTrailers => {
                stream
                    .set_header(HeaderMap::RequestTrailers, b"x-t", b"2")
                    .unwrap();
            }
            phase => seen.add(format!("{phase} {}", call.end_of_stream)),
        }
        Ok(Decision::Continue)
    });
    in_every_way(
        &chain(vec![plugin]),
        &request,
        &ok(&[]),
        ScriptedHost::default,
        |outcome| {
            assert_eq!(upstream_body(outcome), "onetwo");
            let trailers = outcome.upstream_request.as_ref().unwrap().trailers.clone();
            assert_eq!(trailers.unwrap().text("x-t"), "2");
            assert_eq!(notes.take(), ["request body false"]);
        },
    );
}

#[test]
fn a_stream_is_seen_chunk_by_chunk() {
    let notes = Notes::default();
    let seen = notes.clone();
    let interest = Interest {
        request_body: BodyMode::Stream,
        ..Interest::default()
    };
    let plugin = Build::new("streaming", interest, move |_, call, stream| {
        let chunk = body(stream, Direction::Request);
        seen.add(format!("{chunk} {}", call.end_of_stream));
        let doubled = format!("{chunk}{chunk}");
        stream
            .set_body(Direction::Request, doubled.as_bytes())
            .unwrap();
        Ok(Decision::Continue)
    });
    in_every_way(
        &chain(vec![plugin]),
        &post(&["a", "b"]),
        &ok(&[]),
        ScriptedHost::default,
        |outcome| {
            assert_eq!(upstream_body(outcome), "aabb");
            let seen = notes.take();
            assert!(
                seen == ["a false", "b true"] || seen == ["a false", "b false", " true"],
                "{seen:?}"
            );
        },
    );
}

#[test]
fn an_announced_length_is_kept_by_streams() {
    let interest = Interest {
        response_body: BodyMode::Stream,
        ..Interest::default()
    };
    let plugin = Build::new("streaming", interest, |_, _, stream| {
        if stream.body_len(Direction::Response) == Some(0) {
            return Ok(Decision::Continue);
        }
        let error = stream.set_body(Direction::Response, b"longer than it was");
        assert!(error.is_err());
        Ok(Decision::Continue)
    });
    let mut answer = ok(&["body"]);
    answer.headers.set(b"content-length", b"4");
    in_every_way(
        &chain(vec![plugin]),
        &get("/"),
        &answer,
        ScriptedHost::default,
        |outcome| assert_eq!(response_body(outcome), "body"),
    );
}

fn sleeping(milliseconds: u64) -> Build {
    let interest = Interest {
        request_headers: true,
        response_headers: true,
        ..Interest::default()
    };
    Build::new("sleeping", interest, move |_, _, stream| {
        stream
            .start_timer(Duration::from_millis(milliseconds))
            .unwrap();
        Ok(Decision::Pause(Pause::Event))
    })
}

#[test]
fn timers_hold_both_directions_and_the_clock_moves() {
    let mut request = post(&["one", "two", "three"]);
    request.trailers = Some(Headers::new().with("x-t", "1"));
    let chain = chain(vec![sleeping(30), shouting("shouting"), sleeping(10)]);
    in_every_way(
        &chain,
        &request,
        &ok(&["a", "b"]),
        ScriptedHost::default,
        |outcome| {
            assert_eq!(upstream_body(outcome), "ONETWOTHREE!");
            assert_eq!(response_body(outcome), "AB!");
            assert_eq!(outcome.duration(), Duration::from_millis(80));
        },
    );
}

fn asking() -> Build {
    let interest = Interest {
        request_headers: true,
        ..Interest::default()
    };
    Build::new("asking", interest, |_, _, stream| {
        let request = CalloutRequest {
            cluster: b"auth",
            headers: &[
                (b":method", b"GET"),
                (b":path", b"/check"),
                (b":authority", b"auth"),
            ],
            body: b"who?",
            timeout: Some(Duration::from_millis(50)),
        };
        match stream.start_callout(&request) {
            Ok(_) => Ok(Decision::Pause(Pause::Event)),
            Err(failure) => {
                stream
                    .set_header(
                        HeaderMap::RequestHeaders,
                        b"x-why",
                        failure.to_string().as_bytes(),
                    )
                    .unwrap();
                Ok(Decision::Continue)
            }
        }
    })
    .on_wake(|_, wake, stream| {
        let Wake::Callout(_, result) = wake else {
            return Ok(Decision::Continue);
        };
        let why = match result {
            Ok(response) => format!(
                "{} {}",
                String::from_utf8_lossy(response.headers[0].1),
                String::from_utf8_lossy(&response.body.concat())
            ),
            Err(failure) => failure.to_string(),
        };
        stream
            .set_header(HeaderMap::RequestHeaders, b"x-why", why.as_bytes())
            .unwrap();
        Ok(Decision::Continue)
    })
}

fn answering(answer: Result<ScriptedResponse, CalloutFailure>, after: u64) -> ScriptedHost {
    let mut host = ScriptedHost::default();
    host.answers.push_back(ScriptedAnswer {
        after: Duration::from_millis(after),
        answer,
    });
    host
}

#[test]
fn callouts_get_what_the_script_says() {
    let response = ScriptedResponse {
        headers: Headers::new().with(":status", "200"),
        body: vec![b"ali".to_vec(), b"ce".to_vec()],
        ..ScriptedResponse::default()
    };
    let chain = chain(vec![asking()]);
    let whys = [
        (Ok(response.clone()), 20, "200 alice", 20),
        (Err(CalloutFailure::Timeout), 0, "timeout", 50),
        (Ok(response), 60, "timeout", 50),
        (
            Err(CalloutFailure::Reset),
            5,
            "reset before the response was complete",
            5,
        ),
        (
            Err(CalloutFailure::ClusterNotFound),
            5,
            "no upstream of that name",
            0,
        ),
    ];
    for (answer, after, why, took) in whys {
        in_every_way(
            &chain,
            &post(&["body"]),
            &ok(&[]),
            || answering(answer.clone(), after),
            |outcome| {
                let request = outcome.upstream_request.as_ref().unwrap();
                assert_eq!(request.headers.text("x-why"), why);
                assert_eq!(upstream_body(outcome), "body");
                assert_eq!(outcome.duration(), Duration::from_millis(took));
                let made = &outcome.host.callouts[0];
                assert_eq!(made.upstream, "auth");
                assert_eq!(made.body, b"who?");
                assert_eq!(made.headers.text(":path"), "/check");
            },
        );
    }
}

#[test]
fn a_callout_that_no_script_names_finds_nobody() {
    let outcome = play(
        chain(vec![asking()]),
        &get("/"),
        &ok(&[]),
        Arrival::ALL[0],
        ScriptedHost::default(),
    );
    let request = outcome.upstream_request.unwrap();
    assert_eq!(request.headers.text("x-why"), "no upstream of that name");
}

fn refusing(phase: Phase) -> Build {
    let interest = Interest {
        request_headers: phase == Phase::RequestHeaders,
        request_body: if phase == Phase::RequestBody {
            BodyMode::Whole
        } else {
            BodyMode::None
        },
        response_headers: phase == Phase::ResponseHeaders,
        response_body: if phase == Phase::ResponseBody {
            BodyMode::Stream
        } else {
            BodyMode::None
        },
        ..Interest::default()
    };
    Build::new("refusing", interest, |_, _, _| {
        Ok(Decision::Reply(Box::new(Reply {
            status: 403,
            headers: vec![(b"x-why".to_vec(), b"no".to_vec())],
            body: b"go away".to_vec(),
            details: String::new(),
            ..Reply::default()
        })))
    })
}

fn marking() -> Build {
    let interest = Interest {
        response_headers: true,
        ..Interest::default()
    };
    Build::new("marking", interest, |_, _, stream| {
        stream
            .set_header(HeaderMap::ResponseHeaders, b"x-seen", b"yes")
            .unwrap();
        Ok(Decision::Continue)
    })
}

#[test]
fn a_reply_ends_the_stream_and_the_other_plugins_see_it() {
    for phase in [Phase::RequestHeaders, Phase::RequestBody] {
        in_every_way(
            &chain(vec![marking(), refusing(phase), shouting("shouting")]),
            &post(&["one", "two"]),
            &ok(&["never"]),
            ScriptedHost::default,
            |outcome| {
                assert_eq!(outcome.upstream_request, None);
                assert_eq!(status(outcome), "403");
                assert_eq!(response_body(outcome), "GO AWAY!");
                let headers = &outcome.response.as_ref().unwrap().headers;
                assert_eq!(headers.text("x-seen"), "yes");
                assert_eq!(headers.text("x-why"), "no");
                assert_eq!(headers.text("content-length"), "8");
                assert_eq!(outcome.details, "outrider.refusing");
            },
        );
    }
}

#[test]
fn a_reply_to_a_response_replaces_it() {
    in_every_way(
        &chain(vec![refusing(Phase::ResponseHeaders)]),
        &get("/"),
        &ok(&["never"]),
        ScriptedHost::default,
        |outcome| {
            assert!(outcome.upstream_request.is_some());
            assert_eq!(status(outcome), "403");
            assert_eq!(response_body(outcome), "go away");
            assert!(!outcome.reset);
        },
    );
}

#[test]
fn a_reply_that_comes_too_late_resets_the_stream() {
    in_every_way(
        &chain(vec![refusing(Phase::ResponseBody)]),
        &get("/"),
        &ok(&["some", "thing"]),
        ScriptedHost::default,
        |outcome| {
            assert!(outcome.reset);
            assert!(!outcome.response.as_ref().unwrap().complete);
        },
    );
}

#[test]
fn a_request_for_the_headers_alone_gets_no_body() {
    let mut head = get("/");
    head.headers.set(b":method", b"HEAD");
    for chain in [chain(vec![]), chain(vec![refusing(Phase::RequestHeaders)])] {
        in_every_way(
            &chain,
            &head,
            &ok(&["body"]),
            ScriptedHost::default,
            |outcome| assert_eq!(response_body(outcome), ""),
        );
    }
}

#[test]
fn a_body_that_is_too_large_is_the_proxys_to_refuse() {
    let small = || {
        let mut host = ScriptedHost::default();
        host.body_limit = 20;
        host
    };
    in_every_way(
        &chain(vec![marking(), shouting("shouting")]),
        &post(&["one two three", "four five six", "seven"]),
        &ok(&[]),
        small,
        |outcome| {
            assert_eq!(outcome.upstream_request, None);
            assert_eq!(outcome.details, "request_payload_too_large");
        },
    );
    in_every_way(
        &chain(vec![shouting("shouting")]),
        &get("/"),
        &ok(&["one two three", "four five six", "seven"]),
        small,
        |outcome| {
            assert_eq!(status(outcome), "500");
            assert_eq!(outcome.details, "response_payload_too_large");
        },
    );
}

fn failing() -> Build {
    let interest = Interest {
        request_headers: true,
        response_headers: true,
        log: true,
        ..Interest::default()
    };
    Build::new("failing", interest, |_, _, _| {
        Err(Fault {
            cause: Cause::Time,
            message: "main.lua:7: too slow".into(),
        })
    })
}

#[test]
fn failures_follow_their_policy_and_are_reported() {
    let mut metrics = MetricTable::new();
    let closed = chain_with(vec![failing()], &mut metrics);
    let counter = metrics.id("outrider.plugin.failing.errors.time");
    in_every_way(
        &closed,
        &get("/"),
        &ok(&[]),
        ScriptedHost::default,
        |outcome| {
            assert_eq!(status(outcome), "500");
            assert_eq!(outcome.details, "outrider.failing.time");
            assert_eq!(outcome.host.faults[0].message, "main.lua:7: too slow");
            assert_eq!(outcome.host.faults[0].phase, Phase::RequestHeaders);
            assert_eq!(outcome.host.metric_value(counter), 1);
        },
    );
    let open = chain(vec![failing().open()]);
    in_every_way(
        &open,
        &get("/"),
        &ok(&["fine"]),
        ScriptedHost::default,
        |outcome| {
            assert_eq!(response_body(outcome), "fine");
            assert_eq!(outcome.host.faults.len(), 1);
        },
    );
}

#[test]
fn every_stream_gives_back_what_it_held() {
    let ended = Arc::new(AtomicU64::new(0));
    let interest = Interest {
        request_headers: true,
        log: true,
        ..Interest::default()
    };
    let plugin = Build::new("holding", interest, |slot, _, _| {
        *slot = Slot(slot.0 + 1);
        Ok(Decision::Continue)
    })
    .counting_ends(&ended);
    in_every_way(
        &chain(vec![plugin]),
        &get("/"),
        &ok(&[]),
        ScriptedHost::default,
        |_| assert_eq!(ended.swap(0, Ordering::Relaxed), 2),
    );
}

#[test]
fn the_host_keeps_what_plugins_ask_of_it() {
    let interest = Interest {
        request_headers: true,
        log: true,
        ..Interest::default()
    };
    let plugin = Build::new("curious", interest, |_, call, stream| {
        if call.phase == Phase::Log {
            let Some(Scalar::String(details)) = stream.attribute(Attribute::ResponseCodeDetails)
            else {
                panic!("no details")
            };
            let line = format!(
                "{} {:?}",
                String::from_utf8_lossy(details),
                stream.response_code()
            );
            stream.log(LogLevel::Info, &line);
            return Ok(Decision::Continue);
        }
        stream
            .set_metadata(b"shop", b"tier", Scalar::Number(2.0))
            .unwrap();
        let tier = stream.metadata(MetadataSource::Dynamic, b"shop", b"tier");
        assert_eq!(tier, Some(Scalar::Number(2.0)));
        assert!(stream.clear_route_cache());
        assert_eq!(stream.unix_millis(), stream.start_unix_millis());
        Ok(Decision::Continue)
    });
    in_every_way(
        &chain(vec![plugin]),
        &get("/"),
        &ok(&[]),
        || ScriptedHost::starting_at(Duration::from_secs(5)),
        |outcome| {
            assert_eq!(outcome.host.route_cache_clearings, 1);
            let log = outcome.host.log.borrow();
            assert_eq!(log[0].message, "via_upstream Some(200)");
            assert_eq!(log[0].plugin, "curious");
            assert_eq!(outcome.duration(), Duration::ZERO);
        },
    );
}
