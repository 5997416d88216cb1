//! Conversion of types to naga's.

use std::num::NonZeroU32;

use naga::{ArraySize, Handle, StructMember, TypeInner};

use super::{Lowering, naga_scalar};
use crate::types::{Scalar, Type};
use portcullis_core::ir::builder::vector_size;

impl Lowering<'_> {
    fn insert(&mut self, name: Option<String>, inner: TypeInner) -> Handle<naga::Type> {
        self.module.types.insert(naga::Type { name, inner }, naga::Span::UNDEFINED)
    }

    /// The naga type of a value; for a pointer, the `u32` of its offset.
    pub(super) fn ty(&mut self, ty: &Type) -> Handle<naga::Type> {
        match ty {
            Type::Scalar(scalar) => self.insert(None, TypeInner::Scalar(naga_scalar(*scalar))),
            Type::Vector(scalar, size) => {
                self.insert(None, TypeInner::Vector { size: vector_size(*size), scalar: naga_scalar(*scalar) })
            }
            Type::Array(of, count) => {
                let base = self.ty(of);
                let (size, align) = self.layout(base);
                let stride = size.next_multiple_of(align.max(1));
                let size = ArraySize::Constant(NonZeroU32::new(*count).unwrap_or(NonZeroU32::MIN));
                self.insert(None, TypeInner::Array { base, size, stride })
            }
            Type::Struct(id) => {
                if let Some(&handle) = self.structs.get(&id.0) {
                    return handle;
                }
                let filter = self.filter;
                let it = filter.structs.get(*id);
                let (mut offset, mut largest) = (0u32, 1u32);
                let mut members = Vec::new();
                for (i, field) in it.fields.iter().flatten().enumerate() {
                    let ty = self.ty(&field.ty);
                    let (size, align) = self.layout(ty);
                    offset = offset.next_multiple_of(align);
                    members.push(StructMember { name: Some(self.field_name(id.0, i)), ty, binding: None, offset });
                    offset = offset.saturating_add(size);
                    largest = largest.max(align);
                }
                let name = self.struct_name(id.0);
                let handle =
                    self.insert(Some(name), TypeInner::Struct { members, span: offset.next_multiple_of(largest) });
                self.structs.insert(id.0, handle);
                handle
            }
            Type::Pointer(_) | Type::Void | Type::Error => self.ty(&Type::Scalar(Scalar::UInt)),
        }
    }

    fn field_name(&self, id: u32, field: usize) -> String {
        let fields = self.filter.structs.list[id as usize].fields.as_deref().unwrap_or_default();
        self.names.text(fields[field].name).to_owned()
    }

    fn struct_name(&self, id: u32) -> String {
        let name = self.filter.structs.list[id as usize].name;
        name.map_or_else(|| format!("struct_{id}"), |name| self.names.text(name).to_owned())
    }

    /// Size and alignment in variables, in bytes.
    fn layout(&mut self, ty: Handle<naga::Type>) -> (u32, u32) {
        // All types so far have a fixed size; the verifier rejects types too large for naga.
        if self.layouter.update(self.module.to_ctx()).is_err() {
            return (4, 4);
        }
        let layout = self.layouter[ty];
        (layout.size, layout.alignment.round_up(1))
    }
}
