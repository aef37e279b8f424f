-- Posts CloudEvents of 1 KiB in binary mode, each with an id of its own: RUN-0, RUN-1, ...
--
-- Usage: wrk -s post.lua URL -- RUN TYPE THREADS [HEADER-LINE ...]

local threads = 0

function setup(thread)
  thread:set("first", threads)
  threads = threads + 1
end

function init(args)
  number, step = first, tonumber(args[3])
  local data = '{"data":"' .. string.rep("x", 1024 - 11) .. '"}'
  head = "POST " .. wrk.path .. " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] ..
    "\r\nContent-Type: application/json\r\nContent-Length: " .. #data ..
    "\r\nCe-Specversion: 1.0\r\nCe-Source: /bench\r\nCe-Type: " .. args[2] .. "\r\nCe-Id: " .. args[1] .. "-"
  tail = "\r\n"
  for i = 4, #args do
    tail = tail .. args[i] .. "\r\n"
  end
  tail = tail .. "\r\n" .. data
end

function request()
  local r = head .. number .. tail
  number = number + step
  return r
end
