// Keeps a page up to date: the server sends its content whenever the objects change.
'use strict';

const main = document.querySelector('main[data-live]');
const content = document.getElementById('content');
const state = document.getElementById('state');

// replace shows new content, and keeps the focus on the link or field that had it.
function replace(html) {
  const focused = document.activeElement;
  const inside = content.contains(focused);
  const key = inside && (focused.id ? '#' + CSS.escape(focused.id) : focused.href ? `a[href="${CSS.escape(focused.getAttribute('href'))}"]` : '');
  content.innerHTML = html;
  if (key) content.querySelector(key)?.focus({preventScroll: true});
}

// A click needs the same element at its start and its end, so new content waits while a button is pressed.
let pressed = false;
let waiting = null;

function show(html) {
  if (pressed) waiting = html;
  else replace(html);
}

// release comes before the click, so the content is shown after it.
function release() {
  setTimeout(() => {
    pressed = false;
    if (waiting !== null) replace(waiting);
    waiting = null;
  });
}

if (main && window.EventSource) {
  addEventListener('pointerdown', (event) => { pressed = event.button === 0; });
  for (const end of ['pointerup', 'pointercancel', 'blur']) addEventListener(end, release);
  const updates = new EventSource(main.dataset.live);
  updates.addEventListener('content', (event) => show(event.data));
  updates.onopen = () => { state.textContent = 'Live: changes are shown at once.'; };
  updates.onerror = () => { state.textContent = 'Not connected: this page may be out of date.'; };
}

// A log shows the latest lines, and stays at its end unless the user has scrolled up.
const shown = 2000;
const log = document.querySelector('pre[data-stream]');

function append(text) {
  const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  log.append(text);
  while (log.childNodes.length > shown) log.firstChild.remove();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

if (log && window.EventSource) {
  const lines = new EventSource(log.dataset.stream);
  lines.addEventListener('line', (event) => append(event.data));
  lines.addEventListener('problem', (event) => { append(event.data + '\n'); lines.close(); });
}
