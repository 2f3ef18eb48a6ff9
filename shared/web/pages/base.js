// Shared by all pages of Rejoin. All data from the network is shown with textContent; no
// HTML is ever built from it.

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

// tokenIn returns the token that a field holds. A character that no token has, as of a paste, is replaced: fetch would
// throw an error for it, and the server refuses it.
export const tokenIn = (field) => field.value.trim().replace(/[^!-~]/g, '?')

const two = (n) => String(n).padStart(2, '0')

// clock returns the local time and its zone, with the date unless it is today.
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

// confirmEnd asks whether to close a session or a stream of it; a dialog that is closed otherwise means no.
export function confirmEnd(session, stream, clear) {
  const part = (tag, id, className, text) => {
    const made = el(tag, className, text)
    made.id = made.dataset.testid = 'confirm-' + id
    made.value = id // of a button: the dialog's return value
    return made
  }
  const close = clear ? 'Close and clear' : 'Close'
  const form = el('form', '',
    part('h2', 'title', '', `${close} this ${stream ? 'stream' : 'session'}?`),
    part('p', 'text', '', `It accepts no more messages${clear ? ', and the stored events are deleted' : ''}. This cannot be undone.`),
    part('p', 'name', 'name', stream ? `${session} / ${stream}` : session),
    el('div', 'actions', part('button', 'no', '', 'Keep it'), part('button', 'yes', 'danger solid', close)),
  )
  form.method = 'dialog'
  const dialog = el('dialog', '', form)
  dialog.setAttribute('aria-labelledby', 'confirm-title')
  dialog.setAttribute('aria-describedby', 'confirm-text confirm-name')
  document.body.append(dialog)
  dialog.showModal()
  return new Promise((done) => dialog.addEventListener('close', () => {
    dialog.remove()
    done(dialog.returnValue === 'yes')
  }))
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
