// Signed-out pages: menus, theme and time zone only.
import * as ui from "./ui.js";

ui.start();
