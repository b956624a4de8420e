// What every page needs: numbers for people, elements, questions to the server.
'use strict';

const GIB = 2 ** 30;

function count(n) {
  for (const [per, name] of [[1e12, 'T'], [1e9, 'B'], [1e6, 'M'], [1e3, 'K']])
    if (Math.abs(n) >= per) return (n / per).toPrecision(3) + name;
  return String(Math.round(n));
}

function grouped(n) {
  return Math.round(n).toLocaleString('en-US');
}

function bytes(n) {
  return n >= GIB ? (n / GIB).toFixed(1) + ' GiB' : n >= 2 ** 20 ? (n / 2 ** 20).toFixed(1) + ' MiB' : (n / 1024).toFixed(0) + ' KiB';
}

function duration(s) {
  if (s >= 86400) return Math.floor(s / 86400) + 'd ' + Math.floor(s % 86400 / 3600) + 'h';
  if (s >= 3600) return Math.floor(s / 3600) + 'h ' + Math.floor(s % 3600 / 60) + 'm';
  return s >= 60 ? Math.floor(s / 60) + 'm ' + Math.floor(s % 60) + 's' : s.toFixed(s < 10 ? 1 : 0) + 's';
}

// An element with attributes and children; text is text, never markup.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? '' : value);
  element.append(...children);
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function problem(text) {
  byId('problem').hidden = !text;
  byId('problem').textContent = text || '';
}

// JSON of the server; its error is thrown with what it says.
async function ask(target) {
  const reply = await fetch(target);
  const answer = await reply.json().catch(() => ({error: 'the server answered what is no JSON'}));
  if (reply.ok) return answer;
  const error = new Error(answer.error + (answer.hint ? '\n' + answer.hint : ''));
  error.status = reply.status;
  throw error;
}

function runsQuery(names) {
  return names.map(name => 'run=' + encodeURIComponent(name)).join('&');
}

// Calls f now and every so many seconds while the page is looked at.
function repeat(seconds, f) {
  let busy = false;
  const turn = async () => {
    if (busy || document.hidden) return;
    busy = true;
    try { await f(); } finally { busy = false; }
  };
  turn();
  const timer = setInterval(turn, 1000 * seconds);
  document.addEventListener('visibilitychange', turn);
  return () => { clearInterval(timer); document.removeEventListener('visibilitychange', turn); };
}

for (const link of document.querySelectorAll('nav.top a:not(.brand)'))
  if (link.pathname === location.pathname) link.setAttribute('aria-current', 'page');
