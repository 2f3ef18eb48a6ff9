// The building blocks of the admin page.

import { el, number, setText } from './base.js'

export function setAttribute(at, name, value) {
  if (value === null) at.removeAttribute(name)
  else if (at.getAttribute(name) !== value) at.setAttribute(name, value)
}

// keyed makes the children of a list those of its items. An element stays as long as its
// item's key, so the list does not flicker and keeps the focus.
export function keyed(parent, items, keyOf, build, update) {
  const focused = document.activeElement
  const there = new Map()
  for (const child of [...parent.children]) {
    if (there.has(child.key)) child.remove() // two items had one key
    else there.set(child.key, child)
  }
  let at = parent.firstElementChild
  for (const item of items) {
    const key = keyOf(item)
    let child = there.get(key)
    there.delete(key)
    if (!child) {
      child = build(item)
      child.key = key
    }
    update(child, item)
    if (child === at) at = at.nextElementSibling
    else parent.insertBefore(child, at)
  }
  for (const gone of there.values()) gone.remove()
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true })
}

// setParts writes parts with dots between them; {id} is an event ID, which a click selects, and {type} foreign text.
export function setParts(at, parts) {
  const key = JSON.stringify(parts)
  if (at.parts === key) return
  at.parts = key
  at.replaceChildren(...parts.flatMap((part, i) => [i > 0 ? ' · ' : '', ...[part].flat().map((one) => (one.id ? el('code', 'id', one.id) : one.type ? el('bdi', '', one.type) : one))]))
}

// exact revives JSON and keeps the text of an integer that JavaScript would round, where the browser
// can.
export function exact(key, value, written) {
  const rounds = Number.isInteger(value) && !Number.isSafeInteger(value)
  return rounds && written && JSON.rawJSON ? JSON.rawJSON(written.source) : value
}

// ---- Numbers and times -----------------------------------------------------------

export function short(n) {
  if (n < 10000) return number(n)
  return n < 1e6 ? `${round(n / 1e3)} k` : `${round(n / 1e6)} M`
}

const round = (n) => (n < 10 ? n.toFixed(1).replace(/\.0$/, '') : String(Math.round(n)))

export function bytes(n) {
  for (const [unit, size] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) {
    if (n >= size) return `${round(n / size)} ${unit}`
  }
  return `${n} B`
}

export const counted = (n, one, many = one + 's') => `${number(n)} ${n === 1 ? one : many}`

let ahead = 0 // ms by which the server's clock is ahead of the browser's

// setServerTime takes the Date header of a response, which has whole seconds.
export function setServerTime(date) {
  const by = Date.parse(date) + 500 - Date.now()
  ahead = Math.abs(by) < 2000 ? 0 : by || 0
}

// now returns the server's time, to which the server's times are compared.
export const now = () => Date.now() + ahead

// age returns how long ago a time is.
export function age(text) {
  const seconds = Math.max(0, Math.round((now() - Date.parse(text)) / 1000))
  if (seconds < 5) return 'now'
  if (seconds < 120) return `${seconds} s`
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`
  return `${Math.round(seconds / 86400)} d`
}

export const ago = text => age(text) === 'now' ? 'now' : `${age(text)} ago`

// duration returns so many seconds in words.
export function duration(seconds) {
  for (const [unit, size] of [['d', 86400], ['h', 3600], ['min', 60]]) {
    if (seconds >= size && (unit !== 'd' || seconds >= 2 * size)) return `${round(seconds / size)} ${unit}`
  }
  return `${round(seconds)} s`
}

// ---- Trends ------------------------------------------------------------------------

// draw makes a line of values, the newest at the right end.
export function draw(svg, values) {
  const room = Math.max(30, values.length)
  const most = Math.max(1, ...values)
  const points = values.map((value, i) => `${(100 * (room - values.length + i)) / (room - 1)},${23 - (22 * value) / most}`)
  svg.firstElementChild.setAttribute('points', points.join(' '))
}

// ---- Bars --------------------------------------------------------------------------

// bars shows amounts against their limits. The text has all figures, so the bar
// itself is for the eye alone.
export function bars(at, holds) {
  keyed(at, holds, (h) => h.unit, buildBar, updateBar)
}

function buildBar() {
  const bar = el('span', 'fill')
  const made = el('span', 'bar-of', el('span', 'bar-text'), el('span', 'track', bar))
  made.lastElementChild.setAttribute('aria-hidden', 'true')
  made.bar = bar
  return made
}

function updateBar(made, { unit, has, limit, show = number }) {
  setText(made.firstElementChild, limit === undefined ? `${show(has)} ${unit}` : `${show(has)} of ${show(limit)} ${unit}`)
  fill(made.bar, limit > 0 ? has / limit : 0)
  made.dataset.level = level(has, limit)
  made.lastElementChild.hidden = limit === undefined
}

export function fill(bar, share) {
  const width = `${Math.min(100, Math.round(share * 1000) / 10)}%`
  if (bar.style.inlineSize !== width) bar.style.inlineSize = width
}

export const level = (has, limit = 0) => (limit <= 0 || has < 0.8 * limit ? 'free' : has < limit ? 'near' : 'full')

export function holdings(s) {
  return [
    { unit: 'events', has: s.events, limit: s.limits.events },
    { unit: '', has: s.bytes, limit: s.limits.bytes, show: bytes },
    { unit: 'open streams', has: s.openStreams, limit: s.limits.streams },
  ]
}
