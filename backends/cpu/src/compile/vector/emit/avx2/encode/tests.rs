use super::*;

const fn y(number: u8) -> Ymm {
    Ymm(number)
}

const RAX: Gpr = Gpr(0);
const RBX: Gpr = Gpr(3);
const RDX: Gpr = Gpr(2);
const RSP: Gpr = Gpr(4);
const RBP: Gpr = Gpr(5);
const RSI: Gpr = Gpr(6);
const RDI: Gpr = Gpr(7);
const R12: Gpr = Gpr(12);
const R13: Gpr = Gpr(13);
const R14: Gpr = Gpr(14);
const R15: Gpr = Gpr(15);

fn vector(number: u8) -> Operand {
    Operand::Vector(y(number))
}

/// Expected bytes are the output of GNU `as` 2.40 for the same text in Intel's syntax.
#[test]
fn instructions_are_encoded_as_by_gnu_as() {
    type Make = fn(&mut CodeBuffer);
    let all: &[(&str, Make, &[u8])] = &[
        ("vpaddd ymm1,ymm2,ymm3", |c| c.vector_op(VectorOp::Add, y(1), y(2), vector(3)), &[0xc5, 0xed, 0xfe, 0xcb]),
        (
            "vpaddd ymm9,ymm10,ymm11",
            |c| c.vector_op(VectorOp::Add, y(9), y(10), vector(11)),
            &[0xc4, 0x41, 0x2d, 0xfe, 0xcb],
        ),
        (
            "vpmulld ymm1,ymm2,[rsp+32]",
            |c| c.vector_op(VectorOp::Multiply, y(1), y(2), Operand::Memory(Memory::at(RSP, 32))),
            &[0xc4, 0xe2, 0x6d, 0x40, 0x4c, 0x24, 0x20],
        ),
        (
            "vpcmpgtd ymm8,ymm1,ymm15",
            |c| c.vector_op(VectorOp::Greater, y(8), y(1), vector(15)),
            &[0xc4, 0x41, 0x75, 0x66, 0xc7],
        ),
        (
            "vpsllvd ymm3,ymm4,ymm5",
            |c| c.vector_op(VectorOp::ShiftLeft, y(3), y(4), vector(5)),
            &[0xc4, 0xe2, 0x5d, 0x47, 0xdd],
        ),
        (
            "vpsrlvd ymm3,ymm12,ymm5",
            |c| c.vector_op(VectorOp::ShiftRight, y(3), y(12), vector(5)),
            &[0xc4, 0xe2, 0x1d, 0x45, 0xdd],
        ),
        (
            "vpsravd ymm13,ymm4,ymm5",
            |c| c.vector_op(VectorOp::ShiftRightSigned, y(13), y(4), vector(5)),
            &[0xc4, 0x62, 0x5d, 0x46, 0xed],
        ),
        (
            "vpshufb ymm1,ymm2,ymm3",
            |c| c.vector_op(VectorOp::Shuffle, y(1), y(2), vector(3)),
            &[0xc4, 0xe2, 0x6d, 0x00, 0xcb],
        ),
        (
            "vpminud ymm1,ymm2,ymm3",
            |c| c.vector_op(VectorOp::Min, y(1), y(2), vector(3)),
            &[0xc4, 0xe2, 0x6d, 0x3b, 0xcb],
        ),
        (
            "vpmaxsd ymm1,ymm2,ymm3",
            |c| c.vector_op(VectorOp::MaxSigned, y(1), y(2), vector(3)),
            &[0xc4, 0xe2, 0x6d, 0x3d, 0xcb],
        ),
        (
            "vpunpckhqdq ymm1,ymm2,ymm3",
            |c| c.vector_op(VectorOp::HighPairs, y(1), y(2), vector(3)),
            &[0xc5, 0xed, 0x6d, 0xcb],
        ),
        ("vpslld ymm9,ymm2,7", |c| c.shift(ShiftOp::Left, y(9), y(2), 7), &[0xc5, 0xb5, 0x72, 0xf2, 0x07]),
        ("vpsrld ymm1,ymm12,31", |c| c.shift(ShiftOp::Right, y(1), y(12), 31), &[0xc4, 0xc1, 0x75, 0x72, 0xd4, 0x1f]),
        ("vpsrad ymm1,ymm2,1", |c| c.shift(ShiftOp::RightSigned, y(1), y(2), 1), &[0xc5, 0xf5, 0x72, 0xe2, 0x01]),
        (
            "vpblendvb ymm1,ymm2,ymm13,ymm14",
            |c| c.blend(y(1), y(14), vector(13), y(2)),
            &[0xc4, 0xc3, 0x6d, 0x4c, 0xcd, 0xe0],
        ),
        (
            "vshufps ymm1,ymm9,ymm10,0xdd",
            |c| c.every_other(y(1), y(9), y(10), true),
            &[0xc4, 0xc1, 0x34, 0xc6, 0xca, 0xdd],
        ),
        ("vptest ymm9,ymm9", |c| c.vptest(y(9), vector(9)), &[0xc4, 0x42, 0x7d, 0x17, 0xc9]),
        (
            "vmovdqu ymm14,[rsp+256]",
            |c| c.load(y(14), Operand::Memory(Memory::at(RSP, 256))),
            &[0xc5, 0x7e, 0x6f, 0xb4, 0x24, 0x00, 0x01, 0x00, 0x00],
        ),
        (
            "vmovdqu [rbx+rsi*4],ymm9",
            |c| c.store(Memory { base: RBX, index: Some((RSI, 4)), displacement: 0 }, y(9)),
            &[0xc5, 0x7e, 0x7f, 0x0c, 0xb3],
        ),
        (
            "vmovdqu xmm3,[rax+r12+12]",
            |c| c.load_half(y(3), Memory::with_index(RAX, R12, 12)),
            &[0xc4, 0xa1, 0x7a, 0x6f, 0x5c, 0x20, 0x0c],
        ),
        ("vmovdqu xmm3,[r13+16]", |c| c.load_half(y(3), Memory::at(R13, 16)), &[0xc4, 0xc1, 0x7a, 0x6f, 0x5d, 0x10]),
        (
            "vinserti128 ymm3,ymm3,[rax+rbp+112],1",
            |c| c.insert_half(y(3), y(3), Operand::Memory(Memory::with_index(RAX, RBP, 112))),
            &[0xc4, 0xe3, 0x65, 0x38, 0x5c, 0x28, 0x70, 0x01],
        ),
        (
            "vinserti128 ymm13,ymm14,xmm15,1",
            |c| c.insert_half(y(13), y(14), vector(15)),
            &[0xc4, 0x43, 0x0d, 0x38, 0xef, 0x01],
        ),
        ("vextracti128 xmm15,ymm15,1", |c| c.extract_upper_half(y(15), y(15)), &[0xc4, 0x43, 0x7d, 0x39, 0xff, 0x01]),
        (
            "vmovd [r14+rsi+4],xmm15",
            |c| c.store_low_word(Memory::with_index(R14, RSI, 4), y(15)),
            &[0xc4, 0x41, 0x79, 0x7e, 0x7c, 0x36, 0x04],
        ),
        ("vpxor xmm14,xmm14,xmm14", |c| c.zero(y(14)), &[0xc4, 0x41, 0x09, 0xef, 0xf6]),
        (
            "vpinsrd xmm14,xmm14,[rax+r15],3",
            |c| c.insert_lane(y(14), 3, Memory::with_index(RAX, R15, 0), 4),
            &[0xc4, 0x23, 0x09, 0x22, 0x34, 0x38, 0x03],
        ),
        (
            "vpinsrw xmm15,xmm15,[rax+r15+16],2",
            |c| c.insert_lane(y(15), 1, Memory::with_index(RAX, R15, 16), 2),
            &[0xc4, 0x21, 0x01, 0xc4, 0x7c, 0x38, 0x10, 0x02],
        ),
        (
            "vpinsrb xmm14,xmm14,[r14+r15+1000],12",
            |c| c.insert_lane(y(14), 3, Memory::with_index(R14, R15, 1000), 1),
            &[0xc4, 0x03, 0x09, 0x20, 0xb4, 0x3e, 0xe8, 0x03, 0x00, 0x00, 0x0c],
        ),
        ("vzeroupper", |c| c.vzeroupper(), &[0xc5, 0xf8, 0x77]),
        ("mov r13,[rdi+8]", |c| c.load64(R13, Memory::at(RDI, 8)), &[0x4c, 0x8b, 0x6f, 0x08]),
        ("mov r12d,[r13+56]", |c| c.load32(R12, Memory::at(R13, 56)), &[0x45, 0x8b, 0x65, 0x38]),
        ("mov [rsp+64],r15", |c| c.store64(Memory::at(RSP, 64), R15), &[0x4c, 0x89, 0x7c, 0x24, 0x40]),
        (
            "lea r13,[r13+rsi*8]",
            |c| c.lea(R13, Memory { base: R13, index: Some((RSI, 8)), displacement: 0 }),
            &[0x4d, 0x8d, 0x6c, 0xf5, 0x00],
        ),
        (
            "vpsubd ymm1,ymm2,ymm3",
            |c| c.vector_op(VectorOp::Subtract, y(1), y(2), vector(3)),
            &[0xc5, 0xed, 0xfa, 0xcb],
        ),
        ("vpand ymm1,ymm12,ymm3", |c| c.vector_op(VectorOp::And, y(1), y(12), vector(3)), &[0xc5, 0x9d, 0xdb, 0xcb]),
        (
            "vpandn ymm1,ymm2,ymm13",
            |c| c.vector_op(VectorOp::AndNot, y(1), y(2), vector(13)),
            &[0xc4, 0xc1, 0x6d, 0xdf, 0xcd],
        ),
        ("vpor ymm11,ymm2,ymm3", |c| c.vector_op(VectorOp::Or, y(11), y(2), vector(3)), &[0xc5, 0x6d, 0xeb, 0xdb]),
        ("vpxor ymm1,ymm2,ymm3", |c| c.vector_op(VectorOp::Xor, y(1), y(2), vector(3)), &[0xc5, 0xed, 0xef, 0xcb]),
        ("vpcmpeqd ymm1,ymm2,ymm3", |c| c.vector_op(VectorOp::Equal, y(1), y(2), vector(3)), &[0xc5, 0xed, 0x76, 0xcb]),
        (
            "vpmaxud ymm1,ymm2,ymm3",
            |c| c.vector_op(VectorOp::Max, y(1), y(2), vector(3)),
            &[0xc4, 0xe2, 0x6d, 0x3f, 0xcb],
        ),
        (
            "vpminsd ymm1,ymm2,ymm3",
            |c| c.vector_op(VectorOp::MinSigned, y(1), y(2), vector(3)),
            &[0xc4, 0xe2, 0x6d, 0x39, 0xcb],
        ),
        (
            "vpunpckldq ymm1,ymm2,ymm3",
            |c| c.vector_op(VectorOp::LowWords, y(1), y(2), vector(3)),
            &[0xc5, 0xed, 0x62, 0xcb],
        ),
        (
            "vpunpckhdq ymm1,ymm2,ymm3",
            |c| c.vector_op(VectorOp::HighWords, y(1), y(2), vector(3)),
            &[0xc5, 0xed, 0x6a, 0xcb],
        ),
        (
            "vpunpcklqdq ymm1,ymm2,ymm3",
            |c| c.vector_op(VectorOp::LowPairs, y(1), y(2), vector(3)),
            &[0xc5, 0xed, 0x6c, 0xcb],
        ),
        ("mov r15,rsp", |c| c.mov(R15, RSP), &[0x4c, 0x8b, 0xfc]),
        ("mov rsp,r15", |c| c.mov(RSP, R15), &[0x49, 0x8b, 0xe7]),
        ("imul r14,rsi,1000", |c| c.imul(R14, RSI, 1000), &[0x4c, 0x69, 0xf6, 0xe8, 0x03, 0x00, 0x00]),
        ("add rsi,256", |c| c.add_imm(RSI, 256), &[0x48, 0x81, 0xc6, 0x00, 0x01, 0x00, 0x00]),
        ("add r13,256", |c| c.add_imm(R13, 256), &[0x49, 0x81, 0xc5, 0x00, 0x01, 0x00, 0x00]),
        ("add rsp,-256", |c| c.add_imm(RSP, -256), &[0x48, 0x81, 0xc4, 0x00, 0xff, 0xff, 0xff]),
        ("and rsp,-256", |c| c.and_imm(RSP, -256), &[0x48, 0x81, 0xe4, 0x00, 0xff, 0xff, 0xff]),
        ("cmp rsi,rdx", |c| c.cmp(RSI, RDX), &[0x48, 0x3b, 0xf2]),
        ("cmp r14,r15", |c| c.cmp(R14, R15), &[0x4d, 0x3b, 0xf7]),
        ("push r12", |c| c.push(R12), &[0x41, 0x54]),
        ("pop rbx", |c| c.pop(RBX), &[0x5b]),
    ];
    for (text, make, expected) in all {
        let mut code = CodeBuffer::default();
        make(&mut code);
        assert_eq!(&code.hot, expected, "{text}");
    }
}

#[test]
fn displacements_are_relative_to_the_end_of_the_instruction() {
    let mut code = CodeBuffer::default();
    code.jcc(Condition::Zero, Label(0));
    code.blend(y(0), y(1), Operand::Constant(1), y(2));
    code.set_cold(true);
    code.bind_label(Label(0));
    code.jmp(Label(1));
    code.set_cold(false);
    code.bind_label(Label(1));
    code.ret();
    let bytes = code.finish(&[[1; CONSTANT_BYTES], [2; CONSTANT_BYTES]]);
    let at = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as i64 + at as i64 + 4;
    // 6 bytes of `jz`, 10 of `vpblendvb` with a byte behind its displacement, 1 of `ret`; then cold
    // code.
    assert_eq!(bytes[..2], [0x0f, 0x84]);
    assert_eq!(at(2), 17);
    assert_eq!(at(11) + 1, 32 + 32);
    assert_eq!((bytes[16], bytes[17]), (0xc3, 0xe9));
    assert_eq!(at(18), 16);
    assert_eq!(bytes.len(), 32 + 2 * 32);
    assert_eq!((bytes[31], bytes[32], bytes[64]), (0xcc, 1, 2));
}
