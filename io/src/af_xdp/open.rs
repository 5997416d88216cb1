//! Opening the sockets, memory and XDP programs of a run.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_core::packet::{RESIZE_ROOM, ResizeRoom};
use xsk_rs::config::UmemConfig;

use super::error::XdpError;
use super::executor::{LaneOutputs, SharedTx, StackOutput, XdpExecutor};
use super::frame_audit::FrameAudit;
use super::frame_pool::FramePool;
use super::port::{PortSpec, queues};
use super::receiver::{BatchFormat, Queue, XdpReceiver};
use super::rules::Steering;
use super::rx::Rx;
use super::socket::{self, BusyPoll, CopyMode, Rings, SocketOptions};
use super::stack::{InjectionPoint, StackDevice, StackInjector};
use super::tx::{self, Tx, TxBatch};
use super::tx_only_socket::TxOnlySocket;
use super::umem::{HEADROOM, Umem};
use super::xdp::{self, AttachedProgram, Mode};
use crate::live::Lane;
use crate::live::link::Interface;

/// How queues are assigned to lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LaneLayout {
    /// Each queue has its own lane.
    #[default]
    PerQueue,
    /// One lane serves all queues, for filters whose state is shared by all packets.
    Shared,
}

/// Configuration of a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Ports that packets are received on. A port's number is its index here.
    pub ports: Vec<PortSpec>,
    /// Whether metadata numbers ports by interface index instead.
    pub by_interface: bool,
    /// Output interface of each redirect target.
    pub redirect: Vec<(u32, String)>,
    /// How passed packets get into the kernel's stack; `None` drops them.
    pub stack: Option<StackDevice>,
    /// How queues are assigned to lanes.
    pub lanes: LaneLayout,
    /// Which frames are redirected to user space.
    pub steer: Steering,
    /// Mode of the XDP program; `None` for the best that the driver supports.
    pub mode: Option<Mode>,
    /// How frames get into memory.
    pub copying: CopyMode,
    /// Busy polling; `None` to disable.
    pub busy_poll: Option<BusyPoll>,
    /// Whether the memory uses huge pages.
    pub huge_pages: bool,
    /// Whether packets have headroom and tailroom, for filters that change packet lengths.
    pub room: ResizeRoom,
    /// Whether batches carry metadata.
    pub metadata: bool,
    /// Whether the filter writes to packets. If so, partial checksums are completed before the
    /// filter, which may rely on them and update them; otherwise when a packet leaves.
    pub rewrites: bool,
    /// Frames per queue: a power of two, at least 64. RX and TX rings have a quarter of it each,
    /// the fill ring half; frames in none of the rings are in batches.
    pub frames: u32,
}

impl Options {
    /// Default number of frames per queue: 16 MiB of 2 KiB each.
    pub const FRAMES: u32 = 8192;

    /// Options for these ports with one lane per queue and no other outputs, for filters that
    /// neither read metadata nor change packets.
    pub fn new(ports: Vec<PortSpec>) -> Options {
        Options {
            ports,
            by_interface: false,
            redirect: Vec::new(),
            stack: None,
            lanes: LaneLayout::PerQueue,
            steer: Steering::Default,
            mode: None,
            copying: CopyMode::Auto,
            busy_poll: None,
            huge_pages: false,
            room: ResizeRoom::None,
            metadata: false,
            rewrites: false,
            frames: Options::FRAMES,
        }
    }

    /// Sets [`Options::by_interface`].
    #[must_use]
    pub fn with_by_interface(self, by_interface: bool) -> Options {
        Options { by_interface, ..self }
    }

    /// Sets [`Options::redirect`].
    #[must_use]
    pub fn with_redirect(self, redirect: Vec<(u32, String)>) -> Options {
        Options { redirect, ..self }
    }

    /// Sets [`Options::stack`].
    #[must_use]
    pub fn with_stack(self, stack: impl Into<Option<StackDevice>>) -> Options {
        Options { stack: stack.into(), ..self }
    }

    /// Sets [`Options::lanes`].
    #[must_use]
    pub fn with_lanes(self, lanes: LaneLayout) -> Options {
        Options { lanes, ..self }
    }

    /// Sets [`Options::steer`].
    #[must_use]
    pub fn with_steer(self, steer: Steering) -> Options {
        Options { steer, ..self }
    }

    /// Sets [`Options::mode`].
    #[must_use]
    pub fn with_mode(self, mode: impl Into<Option<Mode>>) -> Options {
        Options { mode: mode.into(), ..self }
    }

    /// Sets [`Options::copying`].
    #[must_use]
    pub fn with_copying(self, copying: CopyMode) -> Options {
        Options { copying, ..self }
    }

    /// Sets [`Options::busy_poll`].
    #[must_use]
    pub fn with_busy_poll(self, busy_poll: impl Into<Option<BusyPoll>>) -> Options {
        Options { busy_poll: busy_poll.into(), ..self }
    }

    /// Sets [`Options::huge_pages`].
    #[must_use]
    pub fn with_huge_pages(self, huge_pages: bool) -> Options {
        Options { huge_pages, ..self }
    }

    /// Sets [`Options::room`].
    #[must_use]
    pub fn with_room(self, room: ResizeRoom) -> Options {
        Options { room, ..self }
    }

    /// Sets [`Options::metadata`].
    #[must_use]
    pub fn with_metadata(self, metadata: bool) -> Options {
        Options { metadata, ..self }
    }

    /// Sets [`Options::rewrites`].
    #[must_use]
    pub fn with_rewrites(self, rewrites: bool) -> Options {
        Options { rewrites, ..self }
    }

    /// Sets [`Options::frames`].
    #[must_use]
    pub fn with_frames(self, frames: u32) -> Options {
        Options { frames, ..self }
    }
}

/// Properties of an open port.
#[derive(Debug)]
pub struct PortInfo {
    /// Interface name.
    pub interface: String,
    /// Whether VLAN tags are stripped before the XDP program runs ([`Interface::loses_vlan_tags`]).
    pub loses_vlan_tags: bool,
    /// Queue numbers.
    pub queues: Vec<u32>,
    /// Mode of the XDP program.
    pub mode: Mode,
    /// Why native mode failed, if it was tried.
    pub not_native: Option<String>,
    /// Whether the driver writes frames directly into memory.
    pub is_zero_copy: bool,
    /// Size of a frame in bytes.
    pub frame_size: usize,
    /// Maximum length in bytes of a packet in a single frame.
    pub longest: usize,
    /// Whether longer packets arrive in several frames and are reassembled.
    pub multi_buffer: bool,
    /// How passed packets get into the kernel's stack (`tcx`, `mirred`, `beside`, with a prefix
    /// `tap, ` if through a TAP interface), if they do.
    pub stack: Option<String>,
}

/// A run's open ports. On drop, the programs are detached, and packets stay with the kernel again.
pub struct AfXdp {
    attached: Vec<AttachedProgram>,
    /// The lanes, to be driven by the caller from now on.
    pub lanes: Vec<Lane>,
    /// Properties of each port.
    pub ports: Vec<PortInfo>,
    /// Transmitting half of each receiving queue.
    back: Vec<SharedTx>,
    umem: Arc<Umem>,
    pool: Arc<FramePool>,
    /// Counts the frames by location.
    pub frame_audit: FrameAudit,
    /// Removed after the sockets that transmit into them.
    _stacks: Vec<Arc<StackInjector>>,
}

impl AfXdp {
    /// Detaches the programs. Packets already received into the rings can still be taken.
    pub fn detach(&mut self) {
        self.attached.clear();
    }

    /// Transmits copies of a frame on each receiving queue; returns the number of packets accepted
    /// by all rings together. Their frames are reclaimed like those of other packets.
    ///
    /// # Panics
    /// If the frame exceeds [`PortInfo::longest`].
    pub fn send(&self, frame: &[u8], copies: usize) -> u64 {
        let mut sent = 0;
        for (lane, port) in self.back.iter().enumerate() {
            let (mut frames, mut out) = (Vec::new(), TxBatch::default());
            self.pool.take_frames(lane % self.lanes.len().max(1), copies, &mut frames);
            for copy in frames {
                let mut copy = self.umem.reset(copy);
                self.umem.bytes_mut(&mut copy)[..frame.len()].copy_from_slice(frame);
                out.push([self.umem.packet(copy, frame.len())], frame.len());
            }
            // The rings stay consistent even if another user panicked.
            sent += port.lock().unwrap_or_else(std::sync::PoisonError::into_inner).send(&mut out).packets;
        }
        sent
    }
}

/// The smallest frame size in bytes for packets of up to `longest` bytes.
fn frame_size(longest: usize, room: ResizeRoom) -> u32 {
    let behind = if room == ResizeRoom::Both { RESIZE_ROOM as usize } else { 0 };
    if HEADROOM + longest + behind <= 2048 { 2048 } else { 4096 }
}

/// Maximum length in bytes of a received packet for an MTU: an Ethernet header and two VLAN tags
/// more.
const fn longest(mtu: usize) -> usize {
    mtu + 14 + 2 * 4
}

/// Maximum length in bytes of a transmitted packet for an MTU: the header and one tag more. veth
/// silently drops longer ones (`__is_skb_forwardable`, `linux/netdevice.h`).
const fn sendable(mtu: usize) -> usize {
    mtu + 14 + 4
}

/// Reassembly buffers per lane: the maximum number of multi-frame packets in batches.
const REASSEMBLY_BUFFERS_PER_LANE: usize = 64;

/// Opens the ports. Once this returns, their packets are redirected here.
///
/// # Errors
/// [`XdpError`] names the next step. Everything opened so far is closed again.
pub fn open(options: &Options) -> Result<AfXdp, XdpError> {
    match open_in_mode(options, options.copying) {
        // All sockets of a UMEM are bound in the mode of the first one (`xp_assign_dev_shared`,
        // `net/xdp/xsk_buff_pool.c`), so if one port has no zero-copy mode, none uses it.
        Err(XdpError::NoZeroCopy { .. }) if options.copying == CopyMode::Auto => open_in_mode(options, CopyMode::Copy),
        opened => opened,
    }
}

/// The copy mode for sockets whose programs run in these modes.
fn copying(asked: CopyMode, programs: &[AttachedProgram]) -> Result<CopyMode, XdpError> {
    let Some(skb) = programs.iter().find(|program| program.mode() == Mode::Skb) else { return Ok(asked) };
    match asked {
        CopyMode::ZeroCopy => Err(XdpError::NoZeroCopyInSkbMode {
            interface: skb.interface().to_owned(),
            not_native: skb.not_native().map(ToString::to_string),
        }),
        // In SKB mode the kernel would still bind sockets as zero-copy if the driver can, and then
        // driver and stack would both consume one fill ring.
        CopyMode::Auto | CopyMode::Copy => Ok(CopyMode::Copy),
    }
}

fn open_in_mode(options: &Options, asked: CopyMode) -> Result<AfXdp, XdpError> {
    let facts = options.ports.iter().map(|port| Interface::find(&port.interface));
    let facts: Vec<Interface> = facts.collect::<Result<_, _>>()?;
    let ports: Vec<Vec<u32>> =
        options.ports.iter().zip(&facts).map(|(port, facts)| queues(port, facts)).collect::<Result<_, _>>()?;
    // Check redirect interfaces before touching any interface.
    options.redirect.iter().try_for_each(|(_, interface)| Interface::find(interface).map(drop))?;
    let count: usize = ports.iter().map(Vec::len).sum();
    let lanes = if options.lanes == LaneLayout::PerQueue { count } else { 1 };

    let longest_packet = facts.iter().map(|facts| longest(facts.mtu as usize)).max().unwrap_or(0);
    let mut run = OpenState::new(options, longest_packet, count, lanes)?;
    // The programs redirect nothing until sockets are set. The sockets' mode depends on the
    // programs'.
    let program = xdp::Options::default().with_mode(options.mode).with_frags(run.multi_buffer);
    let mut attached = Vec::new();
    for (port, facts) in options.ports.iter().zip(&facts) {
        attached.push(AttachedProgram::new(&port.interface, facts.receive_queues, &options.steer, &program)?);
    }
    run.copying = copying(asked, &attached)?;
    let mut received = Vec::new();
    for (number, ((port, queues), facts)) in options.ports.iter().zip(&ports).zip(&facts).enumerate() {
        run.ports.push(facts.index);
        for queue in queues {
            let known_as = if options.by_interface { facts.index } else { number as u32 };
            let numbers = (number as u32, known_as);
            received.push(run.open_rx(numbers, &port.interface, *queue, facts, received.len() % lanes)?);
        }
    }
    let mut stacks = run.open_stacks(lanes)?.into_iter();
    let redirect = run.open_redirects(lanes)?;

    let mut info = Vec::new();
    let mut into_stack = Vec::new();
    for (number, (((port, queues), facts), program)) in
        options.ports.iter().zip(ports).zip(&facts).zip(&attached).enumerate()
    {
        let mut way = None;
        let mut outputs = vec![StackOutput::Disabled; lanes];
        let mut kept = None;
        if let Some((mut stack, by_lane)) = stacks.next() {
            let joined = stack.connect(program.mode()).map(|way| way.name());
            let name = joined.map_err(|error| XdpError::Stack { interface: port.interface.clone(), error })?;
            let is_tap = by_lane.is_empty();
            way = Some(if is_tap { format!("tap, {name}") } else { name.to_owned() });
            let stack = Arc::new(stack);
            outputs = if is_tap { vec![StackOutput::Tap(stack.clone()); lanes] } else { by_lane };
            kept = Some(stack);
        }
        into_stack.push((outputs, kept));
        let of_port: Vec<&RxPort> = received.iter().filter(|it| it.queue.port as usize == number).collect();
        info.push(PortInfo {
            interface: port.interface.clone(),
            loses_vlan_tags: facts.loses_vlan_tags(),
            queues,
            mode: program.mode(),
            not_native: program.not_native().map(ToString::to_string),
            is_zero_copy: of_port.iter().all(|it| it.is_zero_copy),
            frame_size: run.umem.frame_size(),
            longest: run.umem.frame_size() - HEADROOM,
            multi_buffer: run.multi_buffer,
            stack: way,
        });
    }

    let back = received.iter().map(|it| it.back.clone()).collect();
    let kernel_frames = received.iter().map(|it| it.queue.rx.kernel_frames()).collect();
    let frame_audit = FrameAudit::new(run.pool.clone(), kernel_frames, std::mem::take(&mut run.sending));
    let format = BatchFormat { room: options.room, metadata: options.metadata, completes_checksums: options.rewrites };
    let mut by_lane: Vec<Vec<RxPort>> = Vec::new();
    by_lane.resize_with(lanes, Vec::new);
    for (number, it) in received.into_iter().enumerate() {
        by_lane[number % lanes].push(it);
    }
    let ring = run.ring_size() as usize;
    let busy_poll = options.busy_poll.map(|it| Duration::from_micros(it.microseconds.into()));
    let mut lanes = Vec::new();
    for (lane, queues) in by_lane.into_iter().enumerate() {
        let names: Vec<String> = queues.iter().map(|it| format!("{}:{}", it.queue.interface, it.queue.queue)).collect();
        let outputs = LaneOutputs {
            tx_by_queue: queues.iter().map(|it| it.back.clone()).collect(),
            redirect: redirect.iter().map(|(target, ports)| (*target, ports[lane].clone())).collect(),
            stack: queues.iter().map(|it| into_stack[it.queue.port as usize].0[lane].clone()).collect(),
        };
        let sockets: Vec<_> = queues.iter().map(|it| (it.queue.port, it.queue.queue, it.queue.rx.fd())).collect();
        let queues = queues.into_iter().map(|it| it.queue).collect();
        let mut receiver = XdpReceiver::new(run.umem.clone(), run.pool.clone(), lane, format, queues, ring, busy_poll);
        receiver.fill_rings()?;
        for (port, queue, fd) in sockets {
            attached[port as usize].set_socket(queue, &fd)?;
        }
        let executor = XdpExecutor::new(run.umem.clone(), run.pool.clone(), lane, !options.rewrites, outputs);
        lanes.push(Lane {
            name: names.join(" "),
            memory: Some(run.umem.span().clone()),
            receiver: Box::new(receiver),
            executor: Box::new(executor),
        });
    }
    let stacks = into_stack.into_iter().filter_map(|(_, stack)| stack).collect();
    let OpenState { umem, pool, .. } = run;
    Ok(AfXdp { attached, lanes, ports: info, back, umem, pool, frame_audit, _stacks: stacks })
}

/// A queue that packets are received on, with its transmitting half.
struct RxPort {
    queue: Queue,
    back: SharedTx,
    is_zero_copy: bool,
}

/// State of a run while it is being opened.
struct OpenState<'a> {
    umem: Arc<Umem>,
    pool: Arc<FramePool>,
    /// Whether packets may exceed a frame.
    multi_buffer: bool,
    options: &'a Options,
    /// Indexes of the receiving interfaces, each of which has an open queue.
    ports: Vec<u32>,
    /// Copy mode of receiving sockets.
    copying: CopyMode,
    /// Transmitting halves by interface index and queue; not by name, because an interface may have
    /// several.
    out: BTreeMap<(u32, u32), SharedTx>,
    sending: Vec<Arc<std::sync::atomic::AtomicI64>>,
    /// The first transmit-only socket, whose memory registration the others share.
    first_sender: Option<Arc<OwnedFd>>,
}

impl<'a> OpenState<'a> {
    /// Allocates the memory for `queues` queues and the packets of `lanes` lanes.
    fn new(options: &'a Options, longest: usize, queues: usize, lanes: usize) -> Result<OpenState<'a>, XdpError> {
        let size = frame_size(longest, options.room);
        let config = UmemConfig::builder()
            .frame_size(size.try_into().expect("2,048 or 4,096"))
            .fill_queue_size((options.frames / 2).try_into().expect("a power of two"))
            .comp_queue_size((options.frames / 4).try_into().expect("a power of two"))
            .build()
            .expect("a frame has room behind its headroom");
        let frames_per_buffer = (longest.max(size as usize) + 2 * RESIZE_ROOM as usize).div_ceil(size as usize);
        let frames = options.frames as usize * queues + REASSEMBLY_BUFFERS_PER_LANE * frames_per_buffer * lanes;
        let frames = u32::try_from(frames).ok().filter(|frames| u64::from(*frames) * u64::from(size) < 1 << 32);
        let frames = frames.ok_or(XdpError::TooManyFrames { queues, frames: options.frames, size })?;
        let (umem, frames) = Umem::new(frames, config, options.huge_pages)?;
        let pool = FramePool::new(frames, lanes, REASSEMBLY_BUFFERS_PER_LANE, frames_per_buffer, umem.frame_size());
        Ok(OpenState {
            multi_buffer: HEADROOM + longest > umem.frame_size(),
            umem: Arc::new(umem),
            pool: Arc::new(pool),
            options,
            ports: Vec::new(),
            copying: options.copying,
            out: BTreeMap::new(),
            sending: Vec::new(),
            first_sender: None,
        })
    }

    /// Opens each port's path into the kernel's stack, by lane; empty if packets do not pass.
    fn open_stacks(&mut self, lanes: usize) -> Result<Vec<(StackInjector, Vec<StackOutput>)>, XdpError> {
        let Some(kind) = self.options.stack else { return Ok(Vec::new()) };
        let mut stacks = Vec::new();
        for port in &self.options.ports {
            let stack = StackInjector::open(&port.interface, kind)?;
            let outputs = match stack.injection_point() {
                InjectionPoint::Veth(near) => {
                    let outputs = (0..lanes).map(|lane| self.open_tx(&near.name, lane).map(StackOutput::Port));
                    outputs.collect::<Result<Vec<_>, _>>()?
                }
                InjectionPoint::Tap(_) => Vec::new(),
            };
            stacks.push((stack, outputs));
        }
        Ok(stacks)
    }

    /// Opens each redirect target's output, by lane: lane n uses queue n if there are as many.
    fn open_redirects(&mut self, lanes: usize) -> Result<Vec<(u32, Vec<SharedTx>)>, XdpError> {
        let options = self.options;
        let by_lane = |(target, interface): &(u32, String)| {
            let ports = (0..lanes).map(|lane| self.open_tx(interface, lane)).collect::<Result<Vec<_>, _>>()?;
            Ok((*target, ports))
        };
        options.redirect.iter().map(by_lane).collect()
    }

    /// Opens a queue for receiving.
    fn open_rx(
        &mut self,
        (port, known_as): (u32, u32),
        interface: &str,
        queue: u32,
        facts: &Interface,
        lane: usize,
    ) -> Result<RxPort, XdpError> {
        let Rings { rx, tx, fill, completion, is_zero_copy } =
            socket::open(&self.umem, interface, queue, &self.socket_options())?;
        let tx = self.tx(tx::TxRings::WithRx(tx, completion), is_zero_copy, facts);
        let back = self.add((facts.index, queue), tx);
        let rx = Rx::new(rx, fill, self.pool.clone(), lane);
        let queue = Queue { interface: interface.into(), port, known_as, queue, rx };
        Ok(RxPort { queue, back, is_zero_copy })
    }

    /// Returns a transmitting half of an interface for a lane: of a queue that is already open, or
    /// of a new transmit-only socket.
    fn open_tx(&mut self, interface: &str, lane: usize) -> Result<SharedTx, XdpError> {
        let facts = Interface::find(interface)?;
        if self.ports.contains(&facts.index) {
            let open: Vec<&SharedTx> =
                self.out.range((facts.index, 0)..=(facts.index, u32::MAX)).map(|(_, port)| port).collect();
            return Ok(open[lane % open.len()].clone());
        }
        let queue = lane as u32 % facts.send_queues.min(facts.receive_queues);
        if let Some(port) = self.out.get(&(facts.index, queue)) {
            return Ok(port.clone());
        }
        let first = self.first_sender.as_deref();
        let (place, ring, multi_buffer) = ((facts.index, queue), self.ring_size(), self.multi_buffer);
        let sender = socket::retry_while_busy(|| TxOnlySocket::open(&self.umem, first, place, ring, multi_buffer))
            .map_err(|error| XdpError::socket(interface, queue, &error))?;
        self.first_sender.get_or_insert_with(|| sender.socket());
        let tx = self.tx(tx::TxRings::TxOnly(sender), false, &facts);
        Ok(self.add((facts.index, queue), tx))
    }

    fn tx(&self, rings: tx::TxRings, is_zero_copy: bool, facts: &Interface) -> Tx {
        let longest = sendable(facts.mtu as usize);
        Tx::new(rings, self.ring_size(), is_zero_copy, self.pool.clone(), longest, self.multi_buffer)
    }

    fn add(&mut self, queue: (u32, u32), tx: Tx) -> SharedTx {
        self.sending.push(tx.in_rings());
        let port = Arc::new(Mutex::new(tx));
        self.out.insert(queue, port.clone());
        port
    }

    /// Entries of an RX or TX ring.
    fn ring_size(&self) -> u32 {
        self.options.frames / 4
    }

    fn socket_options(&self) -> SocketOptions {
        SocketOptions {
            copying: self.copying,
            multi_buffer: self.multi_buffer,
            rx_size: self.ring_size(),
            tx_size: self.ring_size(),
            busy_poll: self.options.busy_poll,
        }
    }
}
