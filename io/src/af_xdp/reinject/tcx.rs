//! Redirection by a BPF program at the first interface's ingress (tcx, Linux 6.6).

use libbpf_sys as bpf;

use super::names;
use crate::af_xdp::bpf::asm::Assembler;
use crate::af_xdp::bpf::error::BpfError;
use crate::af_xdp::bpf::insn::{Insn, Reg};
use crate::af_xdp::bpf::sys::{Link, Program};

/// An attached tcx program, detached on drop, and also if the process is killed.
#[derive(Debug)]
pub struct TcxLink(#[expect(dead_code, reason = "held for its drop")] Link);

/// Redirects frames like [`attach`](super::attach), for XDP programs in native mode.
///
/// # Errors
/// [`BpfError::NoTcx`] if the kernel is too old; others name the next step.
pub fn attach(from: u32, to: u32) -> Result<TcxLink, BpfError> {
    let (from_name, to_name) = names(from, to)?;
    let way = format!("from {from_name} to {to_name}");
    let program = Program::load(bpf::BPF_PROG_TYPE_SCHED_CLS, c"portcullis_back", &redirect(to), 0)
        .map_err(|refused| BpfError::load(format!("{way}: loading the tcx program"), refused))?;
    let link = Link::create(&program, from, bpf::BPF_TCX_INGRESS, 0).map_err(|error| match error.raw_os_error() {
        Some(libc::ENODEV) => BpfError::NoInterface { interface: from_name },
        Some(libc::EINVAL) if !Link::is_known(&program, bpf::BPF_TCX_INGRESS) => BpfError::NoTcx,
        _ => BpfError::new(format!("{way}: attaching the tcx program"), error),
    })?;
    Ok(TcxLink(link))
}

/// Generates `return bpf_redirect(to, BPF_F_INGRESS);`, of type SCHED_CLS.
fn redirect(to: u32) -> Vec<Insn> {
    let mut asm = Assembler::default();
    asm.mov(Reg::R1, to as i32);
    asm.mov(Reg::R2, bpf::BPF_F_INGRESS as i32);
    asm.call(bpf::BPF_FUNC_redirect);
    asm.exit();
    asm.finish()
}
