"""Shapes inside a 14 by 14 box: the outline tells the kind, the filling how far."""

from typing import Final

RING_DASHED: Final = '<circle cx="7" cy="7" r="5.4" stroke-dasharray="2.83 2.825" stroke-linecap="butt"/>'
RING: Final = '<circle cx="7" cy="7" r="5.4"/>'
QUARTER: Final = '<circle cx="7" cy="7" r="5.4"/><path class="f" d="M2.32 9.7A5.4 5.4 0 0 0 11.68 9.7z"/>'
HALF: Final = '<circle cx="7" cy="7" r="5.4"/><path class="f" d="M1.6 7A5.4 5.4 0 0 0 12.4 7z"/>'
THREE_QUARTERS: Final = '<circle cx="7" cy="7" r="5.4"/><path class="f" d="M2.32 4.3A5.4 5.4 0 1 0 11.68 4.3z"/>'
DISC_TICK: Final = '<circle class="f" cx="7" cy="7" r="6.1"/><path class="k" d="m4.3 7.2 1.9 1.9 3.6-4"/>'
DISC_MARK: Final = '<circle class="f" cx="7" cy="7" r="6.1"/><path class="k" d="M7 3.8v3.7M7 10.1v.01"/>'
RING_DOWN: Final = '<circle cx="7" cy="7" r="5.4"/><path d="M7 4v5.6M4.7 7.5 7 9.8l2.3-2.3"/>'
MOON: Final = '<path d="M12.2 8.6A5.6 5.6 0 1 1 5.4 1.8a4.5 4.5 0 0 0 6.8 6.8z"/>'
RING_BAR: Final = '<circle cx="7" cy="7" r="5.4"/><path d="M4.6 7h4.8"/>'
DISC_CROSS: Final = '<circle class="f" cx="7" cy="7" r="6.1"/><path class="k" d="m4.9 4.9 4.2 4.2M9.1 4.9 4.9 9.1"/>'
RING_STRUCK: Final = '<circle cx="7" cy="7" r="5.4"/><path d="M2.6 11.4 11.4 2.6"/>'
RING_TICK: Final = '<circle cx="7" cy="7" r="5.4"/><path d="m4.3 7.2 1.9 1.9 3.6-4"/>'
RING_CROSS: Final = '<circle cx="7" cy="7" r="5.4"/><path d="m5 5 4 4M9 5 5 9"/>'
RING_PAUSE: Final = '<circle cx="7" cy="7" r="5.4"/><path d="M5.6 5v4M8.4 5v4"/>'
RING_CLOCK: Final = '<circle cx="7" cy="7" r="5.4"/><path d="M7 4.2V7l1.9 1.2"/>'
RING_PLUS: Final = '<circle cx="7" cy="7" r="5.4"/><path d="M7 4.4v5.2M4.4 7h5.2"/>'
GPU_HEALTHY: Final = (
    '<rect class="f" x="1" y="1" width="12" height="12" rx="2"/><path class="k" d="m4.3 7.2 1.9 1.9 3.6-4"/>'
)
GPU_SUSPECT: Final = '<rect x="1.7" y="1.7" width="10.6" height="10.6" rx="1.6"/><path d="M7 4v3.4M7 9.9v.01"/>'
GPU_QUARANTINED: Final = (
    '<rect class="f" x="1" y="1" width="12" height="12" rx="2"/><path class="k" d="M3.8 10.2l6.4-6.4"/>'
)
GPU_RECOVERING: Final = (
    '<rect x="1.7" y="1.7" width="10.6" height="10.6" rx="1.6"/><path d="M9.7 7A2.7 2.7 0 1 1 8.8 5M9.8 3.7v1.6H8.2"/>'
)
GPU_RETIRED: Final = (
    '<rect x="1.7" y="1.7" width="10.6" height="10.6" rx="1.6"/><path d="m4.9 4.9 4.2 4.2M9.1 4.9 4.9 9.1"/>'
)
NODE_JOINING: Final = (
    '<rect x="1.5" y="2" width="11" height="4.2" rx="1" stroke-dasharray="2 1.5"/>'
    '<rect class="f" x="1" y="7.5" width="12" height="5" rx="1.2"/>'
)
NODE_READY: Final = (
    '<rect class="f" x="1" y="1.5" width="12" height="5" rx="1.2"/>'
    '<rect class="f" x="1" y="7.5" width="12" height="5" rx="1.2"/>'
    '<path class="k" d="M3.6 4h.01M3.6 10h.01"/>'
)
NODE_CORDONED: Final = (
    '<rect x="1.5" y="2" width="11" height="4.2" rx="1"/>'
    '<rect x="1.5" y="7.8" width="11" height="4.2" rx="1"/><path d="M3.8 4.1h6.4M3.8 9.9h6.4"/>'
)
NODE_DRAINING: Final = '<rect x="1.5" y="1.5" width="11" height="4" rx="1"/><path d="M7 7.2v5M4.7 10 7 12.3 9.3 10"/>'
NODE_DRAINED: Final = (
    '<rect x="1.5" y="2" width="11" height="4.2" rx="1"/><rect x="1.5" y="7.8" width="11" height="4.2" rx="1"/>'
)
NODE_LOST: Final = (
    '<rect x="1.5" y="2" width="11" height="4.2" rx="1"/>'
    '<rect x="1.5" y="7.8" width="11" height="4.2" rx="1"/><path d="M2 13 12.5 1"/>'
)
NODE_REMOVED: Final = (
    '<g stroke-dasharray="2 1.6"><rect x="1.5" y="2" width="11" height="4.2" rx="1"/>'
    '<rect x="1.5" y="7.8" width="11" height="4.2" rx="1"/></g>'
)
ROLLOUT_PLANNED: Final = (
    '<circle cx="7" cy="7" r="5.4" stroke-dasharray="2.83 2.825" stroke-linecap="butt"/><path d="M7 3.6v6.8"/>'
)
ROLLOUT_RUNNING: Final = '<circle cx="7" cy="7" r="5.4"/><path class="f" d="M7 1.6a5.4 5.4 0 0 0 0 10.8z"/>'
ROLLOUT_PROMOTED: Final = (
    '<circle class="f" cx="7" cy="7" r="6.1"/><path class="k" d="M7 10V4.3M4.6 6.6 7 4.2l2.4 2.4"/>'
)
ROLLOUT_ROLLED_BACK: Final = (
    '<circle class="f" cx="7" cy="7" r="6.1"/>'
    '<path class="k" d="M4.4 6h3.3a1.9 1.9 0 0 1 0 3.8H6.2M6 4.3 4.3 6 6 7.7"/>'
)
ROLLOUT_ROLLING_BACK: Final = (
    '<circle cx="7" cy="7" r="5.4"/><path d="M4.4 6h3.3a1.9 1.9 0 0 1 0 3.8H6.2M6 4.3 4.3 6 6 7.7"/>'
)
ROLLOUT_ABORTED: Final = '<circle cx="7" cy="7" r="5.4"/><rect class="f" x="5" y="5" width="4" height="4" rx=".5"/>'
VERSION_UPLOADING: Final = '<path d="M7 1.2 12.8 7 7 12.8 1.2 7z"/><path d="M7 9.3V5M5.2 6.6 7 4.8l1.8 1.8"/>'
VERSION_VALIDATING: Final = '<path d="M7 1.2 12.8 7 7 12.8 1.2 7z"/><path class="f" d="M1.2 7h11.6L7 12.8z"/>'
VERSION_READY: Final = '<path class="f" d="M7 .4 13.6 7 7 13.6.4 7z"/><path class="k" d="m4.6 7.1 1.7 1.7 3.1-3.4"/>'
VERSION_REJECTED: Final = (
    '<path class="f" d="M7 .4 13.6 7 7 13.6.4 7z"/><path class="k" d="m5.2 5.2 3.6 3.6M8.8 5.2 5.2 8.8"/>'
)
VERSION_ARCHIVED: Final = '<path d="M7 1.2 12.8 7 7 12.8 1.2 7z"/><path d="M4.8 7h4.4"/>'
VERDICT_INCONCLUSIVE: Final = '<circle cx="7" cy="7" r="5.4"/><path d="M5 7h4"/>'
