use super::*;
use crate::Protocol;
use crate::echo::Echo;

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];
const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn nothing_is_lost_on_a_sound_service() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        let target = Target::plain(protocol, echo.address());
        let steady = SteadyPlan::new(target, 8, Request::get("/"))
            .requests(|turn| Request::get(&format!("/{}/{}", turn.connection, turn.request)))
            .check(|turn, response| {
                let expected = format!("/{}/{}", turn.connection, turn.request);
                let path = &response.json()["path"];
                (*path == expected.as_str())
                    .then_some(())
                    .ok_or_else(|| format!("path {path}, not {expected}"))
            })
            .start()
            .await
            .unwrap();
        assert!(steady.advance(200, SOON).await);
        let summary = steady.stop().await;
        assert!(summary.is_clean(), "{summary}");
        assert!(summary.requests >= 200);
        assert_eq!(summary.connections, 8);
    }
    assert_eq!(echo.connection_count(), 16);
}

#[tokio::test]
async fn what_the_check_refuses_counts() {
    let echo = Echo::start("echo").await.unwrap();
    let steady = SteadyPlan::new(
        Target::http1(echo.address()),
        2,
        Request::get("/status/503"),
    )
    .start()
    .await
    .unwrap();
    assert!(steady.advance(50, SOON).await);
    let summary = steady.stop().await;
    assert_eq!(summary.failed, summary.requests);
    assert_eq!(summary.closed_connections, 0);
    assert_eq!(summary.details.len(), DETAILED);
    assert!(summary.details[0].contains("status 503"), "{summary}");
    assert!(!summary.is_clean());
}

#[tokio::test]
async fn closed_connections_count_and_are_opened_again() {
    let echo = Echo::start("echo").await.unwrap();
    for (protocol, path, failing) in [
        // Announced: no request fails.
        (Protocol::Http1, "/headers?connection=close", false),
        (Protocol::Http1, "/reset", true),
        (Protocol::Http2, "/reset", true),
    ] {
        let target = Target::plain(protocol, echo.address());
        let steady = SteadyPlan::new(target, 2, Request::get(path))
            .start()
            .await
            .unwrap();
        assert!(steady.advance(20, SOON).await);
        let summary = steady.stop().await;
        assert_eq!(
            summary.closed_connections, summary.requests,
            "{path}: {summary}"
        );
        assert_eq!(
            summary.failed,
            if failing { summary.requests } else { 0 },
            "{path}: {summary}"
        );
    }
}

#[tokio::test]
async fn a_service_that_goes_away_is_seen() {
    for protocol in BOTH {
        let echo = Echo::start("echo").await.unwrap();
        let target = Target::plain(protocol, echo.address());
        let steady = SteadyPlan::new(target, 4, Request::get("/"))
            .start()
            .await
            .unwrap();
        assert!(steady.advance(50, SOON).await);
        assert!(steady.so_far().is_clean());
        drop(echo);
        assert!(steady.advance(5, SOON).await);
        let summary = steady.stop().await;
        assert_eq!(summary.closed_connections, 4, "{summary}");
        assert!(summary.failed > 0, "{summary}");
    }
}

#[tokio::test]
async fn a_close_while_idle_is_seen_at_the_end() {
    let echo = Echo::start("echo").await.unwrap();
    let steady = SteadyPlan::new(Target::http1(echo.address()), 1, Request::get("/"))
        .pause(Duration::from_millis(200))
        .start()
        .await
        .unwrap();
    assert!(steady.advance(1, SOON).await);
    drop(echo);
    let summary = steady.stop().await;
    assert_eq!(
        (summary.closed_connections, summary.failed),
        (1, 0),
        "{summary}"
    );
}

#[tokio::test]
async fn a_load_without_a_service_does_not_start() {
    let echo = Echo::start("echo").await.unwrap();
    let target = Target::http1(echo.address());
    echo.stop().await;
    let error = SteadyPlan::new(target, 1, Request::get("/"))
        .start()
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }));
}
