use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::*;

/// A server on loopback: what it reads of each connection is told, and `serve` does the rest.
fn server(serve: impl Fn(TcpStream, &str) + Send + 'static) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).unwrap_or(0);
            let request = String::from_utf8_lossy(&bytes[..read]).into_owned();
            let _ = tell.send(request.clone());
            serve(stream, &request);
        }
    });
    (url, told)
}

fn service(url: &str) -> Service {
    let mut service = Service::new(BaseUrl::parse(url).unwrap(), 1000, Clock::new(None));
    service.limits = Limits { connect: Duration::from_secs(1), total: Duration::from_millis(900) };
    service
}

fn ask(service: &Service, body: Option<&str>) -> Reply {
    let key = Secret::of("re_Sentinel_12345678");
    let method = if body.is_some() { Method::Post } else { Method::Get };
    service.ask(&Request { method, path: "/emails", key: &key, headers: &[("idempotency-key", "k")], body })
}

fn says(mut stream: TcpStream, answer: &str) {
    let _ = stream.write_all(answer.as_bytes());
}

/// One answer to each request.
fn answering(answer: &'static str) -> (Service, Receiver<String>) {
    let (url, told) = server(move |stream, _| says(stream, answer));
    (service(&url), told)
}

#[track_caller]
fn answered(reply: Reply) -> Answer {
    match reply {
        Reply::Answered(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn lost(reply: Reply) -> String {
    match reply {
        Reply::Lost { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn not_written(reply: Reply) -> String {
    match reply {
        Reply::NotWritten { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_address_of_a_service_is_https_or_this_machine() {
    for (text, loopback) in [
        ("https://api.example.com", false),
        ("https://api.example.com/", false),
        ("https://api.example.com:8443/v1/", false),
        ("https://localhost:1", false),
        ("https://127.0.0.1:1", true),
        ("http://127.0.0.1:1", true),
        ("http://127.8.0.1", true),
        ("http://[::1]:1", true),
    ] {
        assert_eq!(BaseUrl::parse(text).map(|url| url.is_loopback()), Ok(loopback), "{text}");
    }
    assert_eq!(
        BaseUrl::parse("https://api.example.com/v1//").unwrap().to_string(),
        "https://api.example.com/v1"
    );
    for text in [
        "",
        "api.example.com",
        "http://api.example.com",
        "http://localhost:1",
        "http://127.0.0.1.example.com",
        "http://[::2]",
        "ftp://127.0.0.1",
        "https://",
        "https://user@api.example.com",
        "https://:secret@api.example.com",
        "https://api.example.com?key=1",
        "https://api.example.com#x",
    ] {
        assert!(BaseUrl::parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_request_carries_who_we_are_the_key_and_the_body_as_it_is() {
    let (service, told) = answering(
        "HTTP/1.1 200 OK\r\nContent-Type: Application/JSON; charset=x\r\nContent-Length: 2\r\n\r\n{}",
    );
    let answer = answered(ask(&service, Some(r#"{"a":"あ"}"#)));
    assert_eq!((answer.status, answer.body.as_deref()), (200, Some(&b"{}"[..])));
    assert_eq!(answer.content_type.as_deref(), Some("application/json"));
    let request = told.recv().unwrap();
    assert!(
        request.starts_with("POST /emails HTTP/1.1\r\n") && request.ends_with("\r\n\r\n{\"a\":\"あ\"}"),
        "{request}"
    );
    let lower = request.to_ascii_lowercase();
    for line in [
        "user-agent: stepmail/",
        "authorization: bearer re_sentinel_",
        "content-type: application/json\r\n",
        "idempotency-key: k\r\n",
    ] {
        assert!(lower.contains(line), "{line} is not in {request}");
    }
    assert!(!lower.contains("accept-encoding") && !lower.contains("referer"), "{request}");
}

#[test]
fn c010_nothing_left_where_nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let reason = not_written(ask(&service(&url), Some("{}")));
    assert!(reason.starts_with("no connection") && !reason.contains("127.0.0.1"), "{reason}");
}

#[test]
fn c002_whatever_happens_after_the_connection_stands_may_have_been_read() {
    // Before a byte was read, after the request, in mid-answer's head, and what is no HTTP at all.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.incoming().for_each(drop));
    lost(ask(&service(&url), Some("{}")));
    for answer in ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Le", "SSH-2.0-OpenSSH_9\r\n", "\0\0\0\0"] {
        let reason = lost(ask(&answering(answer).0, Some("{}")));
        assert!(reason.starts_with("the connection was lost") && !reason.contains("127.0.0.1"), "{reason}");
    }
}

#[test]
fn an_answer_that_ends_too_soon_or_never_keeps_its_status_and_has_no_body() {
    let cut =
        answered(ask(&answering("HTTP/1.1 422 No\r\nContent-Length: 50\r\n\r\n{\"name\":").0, Some("{}")));
    assert_eq!((cut.status, cut.body), (422, None));
    // 3 MiB are not read; one MiB is.
    for (length, is_read) in [(3 << 20, false), ((1 << 20) + 1, false), (1 << 20, true)] {
        let (url, _) = server(move |mut stream, _| {
            let _ =
                stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes());
            let _ = stream.write_all(&vec![b' '; length]);
        });
        assert_eq!(answered(ask(&service(&url), None)).body.is_some(), is_read, "{length}");
    }
}

#[test]
fn c050_a_request_ends_within_its_time_whoever_dawdles() {
    // Never an answer; the head byte by byte; the body byte by byte, for ever.
    let heads = ["", "HTTP/1.1 200 OK\r\nX: ", "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"];
    for head in heads {
        let (url, _) = server(move |mut stream, _| {
            let _ = stream.write_all(head.as_bytes());
            while stream.write_all(if head.is_empty() { b"" } else { b"x" }).is_ok() {
                std::thread::sleep(Duration::from_millis(50));
                if head.is_empty() {
                    std::thread::sleep(Duration::from_secs(5));
                    return;
                }
            }
        });
        let before = Instant::now();
        match ask(&service(&url), Some("{}")) {
            Reply::Lost { reason } => assert!(reason.starts_with("no answer within"), "{reason}"),
            Reply::Answered(answer) => assert!(answer.body.is_none()),
            other @ Reply::NotWritten { .. } => panic!("{other:?}"),
        }
        assert!(before.elapsed() < Duration::from_secs(4), "{head:?} took {:?}", before.elapsed());
    }
}

#[test]
fn c049_a_redirect_is_an_answer_and_is_not_followed() {
    let (elsewhere, asked) =
        server(|stream, _| says(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"));
    for status in [301, 302, 303, 307, 308] {
        let location = elsewhere.clone();
        let (url, _) = server(move |stream, _| {
            says(
                stream,
                &format!("HTTP/1.1 {status} X\r\nLocation: {location}/emails\r\nContent-Length: 0\r\n\r\n"),
            );
        });
        assert_eq!(answered(ask(&service(&url), Some("{}"))).status, status);
    }
    assert!(asked.try_recv().is_err(), "the key was shown to another host");
}

#[test]
fn a_connection_is_kept_and_one_that_the_server_closed_costs_no_second_mail() {
    let (url, told) = server(|mut stream, _| {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(answer).unwrap();
        // One more on the same connection, and then it is closed without a word.
        let mut bytes = [0; 4096];
        if stream.read(&mut bytes).is_ok_and(|read| read > 0) {
            let _ = stream.write_all(answer);
        }
    });
    let service = service(&url);
    for _ in 0..2 {
        assert_eq!(answered(ask(&service, Some("{}"))).status, 200);
    }
    assert!(told.recv().is_ok() && told.try_recv().is_err(), "two requests, two connections");
    std::thread::sleep(Duration::from_millis(100));
    // Either hyper sees that it is closed before it writes, and takes a new one, or the request counts as lost.
    match ask(&service, Some("{}")) {
        Reply::Answered(answer) => assert_eq!(answer.status, 200),
        Reply::Lost { .. } => {}
        other @ Reply::NotWritten { .. } => panic!("{other:?}"),
    }
}

#[test]
fn r12_the_services_clock_is_remembered_and_runs_on() {
    let (service, _) =
        answering("HTTP/1.1 401 No\r\nDate: Thu, 01 Oct 2026 01:00:00 GMT\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(service.time(), None);
    let answer = answered(ask(&service, None));
    assert_eq!(answer.date.unwrap().to_string(), "2026-10-01T01:00:00Z");
    service.clock.shift_running(90);
    let passed = (service.time().unwrap() - answer.date.unwrap()).0;
    assert!((90..100).contains(&passed), "{passed}");
    for date in ["yesterday", "", "2026-10-01T01:00:00Z", "Thu, 41 Oct 2026 01:00:00 GMT"] {
        let answer = format!("HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n");
        let (url, _) = server(move |stream, _| says(stream, &answer));
        let service = self::service(&url);
        assert_eq!(answered(ask(&service, None)).date, None, "{date}");
        assert_eq!(service.time(), None);
    }
}

#[test]
fn c047_how_long_to_wait_in_seconds_or_until_a_date() {
    let now = Timestamp::parse("2026-10-01T01:00:00Z").unwrap();
    for (text, expected) in [
        ("2", Some(2)),
        ("0", Some(0)),
        ("3600", Some(3600)),
        ("99999999999", Some(RETRY_AFTER_MAX)),
        ("Thu, 01 Oct 2026 01:00:30 GMT", Some(30)),
        ("Thu, 01 Oct 2026 00:59:00 GMT", Some(0)),
        ("-1", None),
        ("abc", None),
        ("", None),
        ("1.5", None),
        ("99999999999999999999", None),
    ] {
        assert_eq!(retry_after(text, now).map(|span| span.0), expected, "{text}");
    }
}

#[test]
fn c047_a_date_to_wait_for_is_measured_by_the_services_clock_and_not_by_ours() {
    let (service, _) = answering(
        "HTTP/1.1 429 No\r\nDate: Mon, 01 Oct 2040 01:00:00 GMT\r\n\
         Retry-After: Mon, 01 Oct 2040 01:00:30 GMT\r\nContent-Length: 0\r\n\r\n",
    );
    assert_eq!(answered(ask(&service, None)).retry_after, Some(Seconds(30)));
}

#[test]
fn c056_what_the_service_says_of_its_limit_slows_the_next_request() {
    for (head, at_least) in [
        ("429 No\r\nRetry-After: 7", 6),
        ("200 OK\r\nRatelimit-Remaining: 0\r\nRatelimit-Reset: 3", 2),
        ("200 OK\r\nRatelimit-Remaining: 0", 0),
        ("429 No\r\nRetry-After: 3600", 59),
    ] {
        let answer = format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n");
        let (url, _) = server(move |stream, _| says(stream, &answer));
        let service = service(&url);
        answered(ask(&service, None));
        let delay = service.delay();
        assert!(
            !delay.is_zero() && delay.as_secs() >= at_least && delay.as_secs() <= 60,
            "{head}: {delay:?}"
        );
    }
    let (service, _) = answering("HTTP/1.1 200 OK\r\nRatelimit-Remaining: 5\r\nContent-Length: 0\r\n\r\n");
    answered(ask(&service, None));
    assert!(service.delay().is_zero());
}

#[test]
fn c070_nothing_that_is_printed_holds_the_key_or_a_body() {
    let (service, _) = answering("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nSentinel");
    let reply = ask(&service, Some("Sentinel"));
    let printed = format!("{service:?} {reply:?} {:?}", Secret::of("re_Sentinel_12345678"));
    assert!(!printed.contains("Sentinel"), "{printed}");
}

/// An `openssl s_server` with a certificate made for the purpose; ends with the value.
struct TlsServer(Child, String);

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tls_server(folder: &std::path::Path) -> Option<TlsServer> {
    let (key, cert) = (folder.join("key.pem"), folder.join("cert.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "1",
        ])
        .args(["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .stderr(Stdio::null())
        .status()
        .ok()?;
    let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
    let child = Command::new("openssl")
        .args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{port}"), "-cert"])
        .arg(cert)
        .arg("-key")
        .arg(key)
        .stdin(Stdio::null())
        .stdout(File::create(folder.join("seen")).ok()?)
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let server = TlsServer(child, format!("https://127.0.0.1:{port}"));
    for _ in 0..200 {
        if made.success() && TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Some(server);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

#[test]
fn c052_a_certificate_that_nobody_vouches_for_gets_neither_key_nor_mail() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = tls_server(folder.path()) else {
        let _ = std::io::stderr().write_all(b"\nSKIPPED: openssl is needed for this test\n");
        return;
    };
    let reason = not_written(ask(&service(&server.1), Some("Sentinel body")));
    assert!(reason.contains("certificate"), "{reason}");
    std::thread::sleep(Duration::from_millis(100));
    let seen = std::fs::read(folder.path().join("seen")).unwrap();
    assert!(!String::from_utf8_lossy(&seen).contains("Sentinel"), "a request reached a stranger");
}

#[test]
fn tls_with_what_speaks_none_sends_nothing() {
    let (url, told) = server(|stream, _| says(stream, "HTTP/1.1 400 No\r\n\r\n"));
    not_written(ask(&service(&url.replace("http://", "https://")), Some("Sentinel body")));
    assert!(!told.recv().unwrap().contains("Sentinel"));
}

#[test]
fn c069_nothing_more_is_asked_for_a_ledger_that_is_no_longer_ours() {
    let (service, told) = answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let beats = Rc::new(Cell::new(0));
    let alive = Rc::clone(&beats);
    service.while_alive(Rc::new(move || {
        alive.set(alive.get() + 1);
        alive.get() == 1
    }));
    answered(ask(&service, None));
    assert_eq!(beats.get(), 1, "no sign of life before a request");
    told.recv().unwrap();
    assert!(not_written(ask(&service, None)).contains("no longer this command's"));
    assert!(told.try_recv().is_err(), "asked all the same");
}
