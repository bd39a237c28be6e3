//! The state of a VM after a call that was interrupted.

use outrider_luajit::LUA_OK;
use outrider_vm_pool::{CallSlot, Overrun};
use std::sync::Arc;

use super::{Entry, State};
use crate::ffi::watch::hook_fires;

impl State {
    /// Looks at the VM after a call, if that was interrupted: one that did not end when its hook was set, or
    /// in which a hook is not called any more, is not to be used again.
    #[inline]
    pub(super) fn note_overrun(&mut self, over: Result<(), Overrun>) {
        if let Err(overrun) = over {
            self.check_hook(overrun);
        }
    }

    #[cold]
    fn check_hook(&mut self, overrun: Overrun) {
        if overrun.is_late() {
            self.unusable = Some("a call ran on after its time budget was used up");
        } else if !self.hook_fires() {
            self.unusable = Some("an interrupted call left its hook unusable");
        }
    }

    /// Whether the VM still calls its hook.
    fn hook_fires(&mut self) -> bool {
        const NO_CONFIGURATION: f64 = -1.0;
        let lua = self.lua;
        // SAFETY: the VM is live and no call of it runs. The main thread's stack has room; pushing a number
        // and reading the registry do not allocate; the call is protected, and its error is dropped.
        unsafe {
            hook_fires(lua, || {
                self.push_entry(Entry::UnloadConfig);
                outrider_luajit::lua_pushnumber(lua, NO_CONFIGURATION);
                if outrider_luajit::lua_pcall(lua, 1, 0, 0) != LUA_OK {
                    outrider_luajit::lua_pop(lua, 1);
                }
            })
        }
    }

    /// Why the VM is not to be used again, or `None` if it may be.
    #[inline]
    pub(crate) fn unusable(&self) -> Option<&'static str> {
        self.unusable
    }

    /// The slot of the VM's calls.
    pub(crate) fn call_slot(&self) -> &Arc<CallSlot> {
        self.watch.slot()
    }
}
