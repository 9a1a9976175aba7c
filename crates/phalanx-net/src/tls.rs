//! TLS 1.3 on one socket: the program's bytes in, records out, and back.
//!
//! Nobody has certificates. Every process makes a key when it first needs one, and forgets it when it ends; any key is taken. What proves the
//! peer is the job's secret, over a value that only the two ends of this session know ([`crate::channel`], AUTH-3).

use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error, ServerConfig, ServerConnection,
    SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{
        CryptoProvider,
        ring::{
            cipher_suite::{
                TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
            },
            default_provider,
        },
        verify_tls13_signature_with_raw_key,
    },
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::AlwaysResolvesServerRawPublicKeys,
    sign::CertifiedKey,
    version::TLS13,
};
use socket2::Socket;
use std::{
    io::{self, IoSlice, Read, Write},
    sync::{Arc, OnceLock},
};

/// Plain bytes that are encrypted and not sent yet, at most.
const MAX_UNSENT: usize = 256 << 10;
/// The system is asked for this much at once at first, and for up to so much where that was not enough. A hub has thousands of connections
/// that say little.
const READ_SIZES: [usize; 2] = [8 << 10, 256 << 10];
/// What the value that both ends compute is called.
const LABEL: &[u8] = b"EXPORTER-phalanx-job";

/// One end of an encrypted connection.
#[derive(Debug)]
pub struct Tls {
    session: Connection,
    records: Records,
}

/// Records as they came from the socket, from `at` to `end`.
struct Records {
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl Tls {
    /// The end that accepted the connection.
    pub fn accept() -> io::Result<Tls> {
        static CONFIG: OnceLock<Arc<ServerConfig>> = OnceLock::new();
        let config = match CONFIG.get() {
            Some(config) => config.clone(),
            // Two threads may both make one; either will do.
            None => {
                let made = server_config()?;
                CONFIG.get_or_init(|| made).clone()
            }
        };
        Ok(Tls::new(Connection::Server(ServerConnection::new(config).map_err(invalid)?)))
    }

    /// The end that made it.
    pub fn connect() -> io::Result<Tls> {
        static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
        let config = CONFIG.get_or_init(client_config).clone();
        // A name that says nothing: what proves the peer is the secret.
        let name = ServerName::try_from("phalanx").expect("a plain word is a name");
        Ok(Tls::new(Connection::Client(ClientConnection::new(config, name).map_err(invalid)?)))
    }

    fn new(mut session: Connection) -> Tls {
        session.set_buffer_limit(Some(MAX_UNSENT));
        Tls { session, records: Records { bytes: Vec::new(), at: 0, end: 0 } }
    }

    /// Goes on with the handshake as far as it goes now; true once it is over.
    pub fn advance(&mut self, socket: &Socket) -> io::Result<bool> {
        loop {
            if !self.flush(socket)? {
                return Ok(false);
            }
            if !self.session.is_handshaking() {
                return Ok(true);
            }
            match self.more(socket) {
                Ok(true) => {}
                Ok(false) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => {
                    // The alert that tells the peer why, if it still reads.
                    let _ = self.flush(socket);
                    return Err(e);
                }
            }
        }
    }

    /// A value that both ends of this session can compute from the same context, and nobody else. After the handshake.
    pub fn bond(&self, context: &[u8]) -> io::Result<[u8; 32]> {
        self.session.export_keying_material([0; 32], LABEL, Some(context)).map_err(invalid)
    }

    /// Takes what can be encrypted now; an error of kind `WouldBlock` while what was taken before has not left.
    pub fn send(&mut self, socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush(socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = self.session.writer().write_vectored(parts)?;
        self.flush(socket)?;
        Ok(n)
    }

    /// Whether all that was taken has left, after another attempt.
    pub fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Outlet(socket)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Whether something that was taken has not left.
    pub fn holds(&self) -> bool {
        self.session.wants_write()
    }

    /// Decrypts what has arrived, as far as there is room; 0 at the end. What was decrypted before comes first, so a caller that gets
    /// `WouldBlock` may sleep until the socket is readable.
    pub fn recv(&mut self, socket: &Socket, into: &mut [u8]) -> io::Result<usize> {
        let mut n = 0;
        while n < into.len() {
            match self.session.reader().read(&mut into[n..]) {
                Ok(0) => return Ok(n),
                Ok(got) => {
                    n += got;
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
            if n > 0 && self.records.is_empty() {
                break;
            }
            match self.more(socket) {
                Ok(true) => {}
                Ok(false) => return Ok(0),
                Err(e) => return Err(e),
            }
        }
        Ok(n)
    }

    /// Hands over records, from the socket if none are left; false at its end.
    fn more(&mut self, socket: &Socket) -> io::Result<bool> {
        if self.records.is_empty() && self.records.fill(socket)? == 0 {
            return Ok(false);
        }
        let mut rest = &self.records.bytes[self.records.at..self.records.end];
        self.records.at += self.session.read_tls(&mut rest)?;
        self.session.process_new_packets().map_err(invalid)?;
        Ok(true)
    }
}

impl Records {
    fn is_empty(&self) -> bool {
        self.at == self.end
    }

    fn fill(&mut self, mut socket: &Socket) -> io::Result<usize> {
        let [least, most] = READ_SIZES;
        if self.bytes.is_empty() || self.end == self.bytes.len() {
            self.bytes.resize((self.bytes.len() * 4).clamp(least, most), 0);
        }
        loop {
            match socket.read(&mut self.bytes) {
                Ok(n) => {
                    (self.at, self.end) = (0, n);
                    return Ok(n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Records({} bytes)", self.end - self.at)
    }
}

/// A socket that answers with an error, never with a signal.
struct Outlet<'a>(&'a Socket);

impl Write for Outlet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send_with_flags(bytes, libc::MSG_NOSIGNAL)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_vectored_with_flags(parts, libc::MSG_NOSIGNAL)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Shorter keys first: both are beyond reach, and these take less time.
fn provider() -> CryptoProvider {
    let suites = [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    CryptoProvider { cipher_suites: suites.to_vec(), ..default_provider() }
}

fn server_config() -> io::Result<Arc<ServerConfig>> {
    let provider = provider();
    let random = ring::rand::SystemRandom::new();
    let key = ring::signature::Ed25519KeyPair::generate_pkcs8(&random)
        .map_err(|_| io::Error::other("the system has no random numbers"))?;
    let key = provider.key_provider.load_private_key(PrivatePkcs8KeyDer::from(key.as_ref().to_vec()).into());
    let key = key.map_err(invalid)?;
    let public = key.public_key().expect("an Ed25519 key has a public half");
    let public = CertificateDer::from(public.as_ref().to_vec());
    let resolver = AlwaysResolvesServerRawPublicKeys::new(Arc::new(CertifiedKey::new(vec![public], key)));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .expect("the provider knows TLS 1.3")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    // Sessions are not resumed.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn client_config() -> Arc<ClientConfig> {
    let provider = Arc::new(provider());
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider knows TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyKey(provider)))
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    Arc::new(config)
}

/// Takes any key, if the peer shows that it has it. Who the peer is, the job's secret proves (AUTH-3).
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(
            message,
            &key,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn invalid(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
