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

export function clock(at) {
  const d = new Date(at)
  const two = (n) => String(n).padStart(2, '0')
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}.${String(d.getMilliseconds()).padStart(3, '0')}`
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
