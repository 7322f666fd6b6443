"""Line icons in a 16 by 16 view box, by name; drawn with ``{% icon "name" %}``."""

from typing import Final

ICONS: Final[dict[str, str]] = {
    "home": '<path d="M2.5 7 8 2.5 13.5 7v6a.5.5 0 0 1-.5.5H9.8V9.5H6.2v4H3a.5.5 0 0 1-.5-.5z"/>',
    "models": '<path d="M8 1.8 13.5 4.9v6.2L8 14.2 2.5 11.1V4.9z"/><path d="M2.7 5 8 8l5.3-3M8 8v6"/>',
    "deployments": '<path d="M8 2 14 5 8 8 2 5z"/><path d="M2 8l6 3 6-3M2 11l6 3 6-3"/>',
    "rollouts": (
        '<circle cx="3.5" cy="3.5" r="1.6"/><circle cx="3.5" cy="12.5" r="1.6"/><circle cx="12.5" cy="3.5" r="1.6"/>'
        '<path d="M3.5 5.1v5.8M12.5 5.1c0 3.6-5.6 2.6-7.6 6"/>'
    ),
    "promote": '<path d="M8 13V3.5M4 7.2 8 3.2l4 4"/>',
    "playground": '<path d="M2.5 3.5h11v8h-6L4.8 14v-2.5H2.5z"/><path d="M5.5 6.5h5M5.5 8.7h3"/>',
    "usage": '<path d="M2.5 13.5h11"/><path d="M4.5 11V7.5M8 11V3.5M11.5 11V6"/>',
    "audit": '<path d="M3.5 2.5h9v11h-9z"/><path d="M6 5.5h4M6 8h4M6 10.5h2.5"/>',
    "keys": '<circle cx="5" cy="10.5" r="2.7"/><path d="M7 8.6 13 2.6M10.7 4.9l2 2"/>',
    "members": (
        '<circle cx="6" cy="5.5" r="2.3"/><path d="M1.8 13c.3-2.6 2-4 4.2-4s3.9 1.4 4.2 4M10.3 3.4a2.3 2.3 0 0 1 0 4.3'
        'M12 9.6c1.3.6 2 1.8 2.2 3.4"/>'
    ),
    "settings": (
        '<path d="M2.5 4.5h6M12 4.5h1.5M2.5 11.5H4M7.5 11.5h6"/><circle cx="10.2" cy="4.5" r="1.7"/>'
        '<circle cx="5.7" cy="11.5" r="1.7"/>'
    ),
    "gpu": (
        '<rect x="4" y="4" width="8" height="8" rx="1"/>'
        '<path d="M6.5 4V2M9.5 4V2M6.5 14v-2M9.5 14v-2M4 6.5H2M4 9.5H2M14 6.5h-2M14 9.5h-2"/>'
    ),
    "nodes": (
        '<rect x="2" y="2.8" width="12" height="4.4" rx="1"/><rect x="2" y="8.8" width="12" height="4.4" rx="1"/>'
        '<path d="M4.5 5h.01M4.5 11h.01M8 5h3.5M8 11h3.5"/>'
    ),
    "quota": '<path d="M2.5 11.5a5.5 5.5 0 1 1 11 0"/><path d="M8 11.5 10.8 7"/><path d="M2.5 13.5h11"/>',
    "price": '<path d="M8.2 2.5H13a.5.5 0 0 1 .5.5v4.8L8 13.3 2.7 8z"/><circle cx="10.8" cy="5.2" r=".9"/>',
    "tenants": (
        '<rect x="2.5" y="2.5" width="4.7" height="4.7" rx=".8"/>'
        '<rect x="8.8" y="2.5" width="4.7" height="4.7" rx=".8"/>'
        '<rect x="2.5" y="8.8" width="4.7" height="4.7" rx=".8"/>'
        '<rect x="8.8" y="8.8" width="4.7" height="4.7" rx=".8"/>'
    ),
    "system": '<rect x="2" y="3" width="12" height="8" rx="1"/><path d="M6 13.5h4M8 11v2.5"/>',
    "pulse": '<path d="M1.5 8.5h3L6.5 3l3 10 2-4.5h3"/>',
    "search": '<circle cx="7" cy="7" r="4.3"/><path d="m10.2 10.2 3.3 3.3"/>',
    "updown": '<path d="m5 6 3-3 3 3M5 10l3 3 3-3"/>',
    "down": '<path d="m4.5 6.5 3.5 3.5 3.5-3.5"/>',
    "right": '<path d="m6.5 4.5 3.5 3.5-3.5 3.5"/>',
    "left": '<path d="m9.5 4.5-3.5 3.5 3.5 3.5"/>',
    "plus": '<path d="M8 3v10M3 8h10"/>',
    "close": '<path d="m4 4 8 8M12 4l-8 8"/>',
    "check": '<path d="m3 8.5 3.3 3.3L13 4.8"/>',
    "copy": (
        '<rect x="5.5" y="5.5" width="8" height="8" rx="1"/>'
        '<path d="M10.5 5.5v-2a1 1 0 0 0-1-1h-6a1 1 0 0 0-1 1v6a1 1 0 0 0 1 1h2"/>'
    ),
    "code": '<path d="m5.5 4.5-3.5 3.5 3.5 3.5M10.5 4.5 14 8l-3.5 3.5"/>',
    "upload": '<path d="M8 10.5V3M4.8 6 8 2.8 11.2 6M2.5 13.5h11"/>',
    "download": '<path d="M8 2.5V10M4.8 7 8 10.2 11.2 7M2.5 13.5h11"/>',
    "folder": (
        '<path d="M2 4a.8.8 0 0 1 .8-.8h3.4L7.7 5h5.5a.8.8 0 0 1 .8.8v6.4a.8.8 0 0 1-.8.8H2.8a.8.8 0 0 1-.8-.8z"/>'
    ),
    "file": '<path d="M4 2h5l3 3v9H4z"/><path d="M9 2v3h3"/>',
    "pause": '<path d="M5.5 3.5v9M10.5 3.5v9"/>',
    "play": '<path d="M5 3.2v9.6L12.5 8z"/>',
    "stop": '<rect x="4" y="4" width="8" height="8" rx=".8"/>',
    "send": '<path d="M2.5 8 13.5 2.8 10.5 13.2 7.8 8.8z"/><path d="M7.8 8.8 13.5 2.8"/>',
    "scale": '<path d="M3 13V9M8 13V6M13 13V3"/>',
    "retry": '<path d="M13.5 8a5.5 5.5 0 1 1-1.7-4M13.5 2v3h-3"/>',
    "undo": '<path d="M3 6.5h6.5a3.5 3.5 0 0 1 0 7H6M5.7 3.5 2.7 6.5l3 3"/>',
    "clock": '<circle cx="8" cy="8" r="5.8"/><path d="M8 4.7V8l2.3 1.6"/>',
    "help": (
        '<circle cx="8" cy="8" r="5.8"/><path d="M6.3 6.3a1.75 1.75 0 1 1 2.6 1.6c-.6.35-.9.7-.9 1.3M8 11.3h.01"/>'
    ),
    "globe": (
        '<circle cx="8" cy="8" r="5.8"/>'
        '<path d="M2.2 8h11.6M8 2.2c2 2 2.6 3.7 2.6 5.8S10 11.8 8 13.8C6 11.8 5.4 10.1 5.4 8S6 4.2 8 2.2z"/>'
    ),
    "moon": '<path d="M13.2 9.7A5.7 5.7 0 0 1 6.3 2.8a5.7 5.7 0 1 0 6.9 6.9z"/>',
    "sun": (
        '<circle cx="8" cy="8" r="2.8"/>'
        '<path d="M8 1.8v1.4M8 12.8v1.4M1.8 8h1.4M12.8 8h1.4M3.6 3.6l1 1M11.4 11.4l1 1M12.4 3.6l-1 1M4.6 11.4l-1 1"/>'
    ),
    "menu": '<path d="M2.5 4.5h11M2.5 8h11M2.5 11.5h11"/>',
    "more": '<path d="M3.5 8h.01M8 8h.01M12.5 8h.01" stroke-width="2"/>',
    "table": '<rect x="2.5" y="3" width="11" height="10" rx=".8"/><path d="M2.5 6.5h11M2.5 9.7h11M6.5 6.5V13"/>',
    "filter": '<path d="M2.5 4h11M4.5 8h7M6.5 12h3"/>',
    "lock": '<rect x="3.5" y="7" width="9" height="6.5" rx="1"/><path d="M5.5 7V5a2.5 2.5 0 0 1 5 0v2"/>',
    "trash": '<path d="M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.6 8.8h5.8l.6-8.8M6.7 7v4M9.3 7v4"/>',
    "signout": '<path d="M6.5 2.5H3v11h3.5M10 5l3 3-3 3M13 8H6.5"/>',
    "link": (
        '<path d="M6.8 9.2a2.6 2.6 0 0 0 3.7 0l2-2a2.6 2.6 0 0 0-3.7-3.7l-.9.9M9.2 6.8a2.6 2.6 0 0 0-3.7 0l-2 2'
        'a2.6 2.6 0 0 0 3.7 3.7l.9-.9"/>'
    ),
    "vessel": '<path d="M2.5 2.5v10a1 1 0 0 0 1 1h9a1 1 0 0 0 1-1v-10"/><path d="M2.5 5.5h11" stroke-opacity=".4"/>',
    "warn": '<path d="M8 2.6 14.2 13H1.8z"/><path d="M8 6.4v3.2M8 11.3h.01"/>',
}

# The mark: a vessel with water and two gauge ticks; a box of 18 by 18.
MARK: Final = (
    '<path class="mark-water" d="M3 9.2h12v4.3a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2z"/>'
    '<path class="mark-wall" d="M2.75 2.5v11A2.25 2.25 0 0 0 5 15.75h8a2.25 2.25 0 0 0 2.25-2.25v-11"/>'
    '<path class="mark-wall" d="M15 5.2h-2.6M15 8h-4"/>'
)
