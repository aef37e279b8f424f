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

if (main && window.EventSource) {
  const updates = new EventSource(main.dataset.live);
  updates.addEventListener('content', (event) => replace(event.data));
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
