-- Posts CloudEvents of 1 KiB in binary mode, each with an id of its own: RUN-0, RUN-1, ... Their data is JSON with values that differ from event to
-- event. In the path of the URL, *N stands for the numbers from 0 to N-1 in turn, so that events go to N Brokers.
--
-- Usage: wrk -s post.lua URL -- RUN TYPE THREADS [HEADER-LINE ...]

local threads, bodies, size = 0, 97, 1024

-- body returns the data of an event.
local function body()
  local items = {}
  local length = 13
  while true do
    local item = string.format('{"sku":"%08x-%04x","quantity":%d,"price":"%d.%02d","currency":"EUR"}',
      math.random(0, 0x7fffffff), math.random(0, 0xffff), math.random(1, 20), math.random(1, 999), math.random(0, 99))
    if length + #item + 1 > size then
      break
    end
    items[#items + 1] = item
    length = length + #item + 1
  end
  local data = '{"order":[' .. table.concat(items, ",") .. ']}'
  return data .. string.rep(" ", size - #data)
end

function setup(thread)
  thread:set("first", threads)
  threads = threads + 1
end

function init(args)
  number, step = first, tonumber(args[3])
  math.randomseed(number)
  local fields = " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] ..
    "\r\nContent-Type: application/json\r\nContent-Length: " .. size ..
    "\r\nCe-Specversion: 1.0\r\nCe-Source: /bench\r\nCe-Type: " .. args[2] .. "\r\nCe-Id: " .. args[1] .. "-"
  brokers = tonumber(wrk.path:match("%*(%d+)") or 1)
  heads = {}
  for i = 0, brokers - 1 do
    heads[i] = "POST " .. wrk.path:gsub("%*%d+", i) .. fields
  end
  tail = "\r\n"
  for i = 4, #args do
    tail = tail .. args[i] .. "\r\n"
  end
  tails = {}
  for i = 0, bodies - 1 do
    tails[i] = tail .. "\r\n" .. body()
  end
end

function request()
  local r = heads[number % brokers] .. number .. tails[number % bodies]
  number = number + step
  return r
end
