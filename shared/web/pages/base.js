// What all pages of Rejoin share. Everything that comes from the network is shown with
// textContent; no HTML is ever built from it.

export const $ = (id) => document.getElementById(id)

export function el(tag, className = '', ...children) {
  const made = document.createElement(tag)
  if (className) made.className = className
  made.append(...children)
  return made
}

export function setText(at, text) {
  if (at.textContent !== text) at.textContent = text
}

export const number = (n) => n.toLocaleString('en')

const two = (n) => String(n).padStart(2, '0')

// clock returns the local time and its zone, with the date when it is not of today.
export function clock(at) {
  const d = new Date(at)
  const time = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}.${String(d.getMilliseconds()).padStart(3, '0')} ${zone(d)}`
  if (d.toDateString() === new Date().toDateString()) return time
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${time}`
}

function zone(d) {
  const minutes = -d.getTimezoneOffset()
  if (minutes === 0) return 'UTC'
  const ahead = Math.abs(minutes)
  return `UTC${minutes < 0 ? '−' : '+'}${Math.floor(ahead / 60)}${ahead % 60 ? ':' + two(ahead % 60) : ''}`
}

// showIfServed shows a link to another page of Rejoin where the same address serves it.
export async function showIfServed(link) {
  const answer = await fetch(link.href, { cache: 'no-store' }).catch(() => ({}))
  link.hidden = !answer.ok
}

// ---- The problem line ----------------------------------------------------------------

export function showProblem({ code, detail }) {
  setText($('problem-code'), code)
  setText($('problem-detail'), detail)
  $('problem-line').dataset.shown = 'true'
}

export function hideProblem() {
  setText($('problem-code'), '')
  setText($('problem-detail'), '')
  $('problem-line').dataset.shown = 'false'
}

$('problem-dismiss').addEventListener('click', hideProblem)
