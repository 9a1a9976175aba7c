//! Somebody who sees every packet between two hosts.

use super::{Hosts, inside};
use crate::launch::support::{Running, phalanx};
use rustix::{
    fs::{Mode, OFlags},
    net::{AddressFamily, Protocol, RawProtocol, RecvFlags, SocketFlags, SocketType},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Packets of every protocol (`ETH_P_ALL`), in the order of bytes of the network.
const EVERY_PROTOCOL: u32 = 3u16.to_be() as u32;
/// More than the jobs of this test send.
const MOST: usize = 256 << 20;
const SECRET: &str = "7f3a90c2b15e64d8a7cc0f19e3d25b8846f1902e7ab3c5d4e6f8091a2b3c4d5e";

/// A thread inside a namespace that keeps every packet, until it is asked for them.
struct Sniffer {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u8>>,
}

impl Sniffer {
    fn on(host: &str) -> Sniffer {
        let path = format!("/run/netns/{host}");
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, (ready_to, ready)) = (is_over.clone(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            let space =
                rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).expect("the namespace is there");
            // Of this thread alone.
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may enter it");
            let socket = listen_to_everything();
            ready_to.send(()).expect("the test waits");
            let (mut all, mut packet) = (Vec::new(), vec![0; 1 << 16]);
            // Relaxed: it only ends the loop.
            while !over.load(Ordering::Relaxed) && all.len() < MOST {
                match rustix::net::recv(&socket, &mut packet, RecvFlags::empty()) {
                    Ok((n, _)) => all.extend_from_slice(&packet[..n]),
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    Err(why) => panic!("the sniffer hears nothing more: {why}"),
                }
            }
            all
        });
        ready.recv_timeout(Duration::from_secs(20)).expect("the sniffer listens");
        Sniffer { is_over, thread }
    }

    fn packets(self) -> Vec<u8> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the sniffer ends")
    }
}

fn listen_to_everything() -> OwnedFd {
    let every = RawProtocol::new(EVERY_PROTOCOL).map(Protocol::from_raw);
    let socket =
        rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, every)
            .expect("root may listen to packets");
    let soon = Some(Duration::from_millis(50));
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, soon)
        .expect("a socket takes options");
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 64 << 20).expect("a socket takes options");
    socket
}

/// What crosses the cable between two ranks that a script has started with a secret of its own, and reduce ones.
fn heard(tag: &str, encrypt: &str) -> Option<Vec<u8>> {
    let hosts = Hosts::pair(tag, false)?;
    let sniffer = Sniffer::on(&hosts.names[0]);
    let mut ranks: Vec<Running> = Vec::new();
    for (rank, host) in hosts.names.iter().enumerate() {
        let binary = phalanx(&[]);
        let mut command = inside(host);
        command.arg(binary.get_program());
        command.args(["bench", "--json", "--op", "allreduce", "--sizes", "64K", "--seconds", "0.01"]);
        binary.get_envs().filter(|(_, value)| value.is_none()).for_each(|(name, _)| {
            command.env_remove(name);
        });
        command.env("PHALANX_RANK", rank.to_string()).env("PHALANX_SIZE", "2");
        command.env("PHALANX_RENDEZVOUS", "10.78.0.1:29555").env("PHALANX_SECRET", SECRET);
        ranks.push(Running::start(command.env("PHALANX_ENCRYPT", encrypt)));
    }
    for rank in ranks {
        let done = rank.finish();
        assert_eq!(done.code, Some(0), "{encrypt}: {done:?}");
    }
    Some(sniffer.packets())
}

fn has(packets: &[u8], wanted: &[u8]) -> bool {
    packets.windows(wanted.len()).any(|window| window == wanted)
}

#[test]
fn between_hosts_neither_tensors_nor_the_secret_can_be_read() {
    // Rank 0 reduces ones, which a packet of a plain connection holds by the hundred.
    let ones: Vec<u8> = std::iter::repeat_n(1.0f32.to_le_bytes(), 32).flatten().collect();
    let raw: Vec<u8> =
        (0..32).map(|i| u8::from_str_radix(&SECRET[2 * i..2 * i + 2], 16).expect("hex")).collect();
    for (tag, encrypt, is_plain) in [("o", "never", true), ("p", "auto", false)] {
        let Some(packets) = heard(tag, encrypt) else { return };
        assert!(packets.len() > 64 << 10, "{encrypt}: only {} bytes were heard", packets.len());
        assert_eq!(has(&packets, &ones), is_plain, "{encrypt}");
        assert!(!has(&packets, SECRET.as_bytes()) && !has(&packets, &raw), "SECRET-1: {encrypt}");
    }
}
